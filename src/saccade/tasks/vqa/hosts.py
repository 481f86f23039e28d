"""Hugging Face models for visual question answering."""

from torch import nn

from ...data.spec import InputSpec
from ...settings import ModelConfig
from ..text.hosts import TextHosts


class QuestionHosts(TextHosts):
    """Builds models such as ViLT."""

    host_kind = "VISUAL_QUESTION_ANSWERING"
    classifier = "classifier."

    @classmethod
    def create_model(cls, config: ModelConfig, spec: InputSpec) -> nn.Module:
        """Build the model; an optimizer scales the rate of the classifier over pretrained layers."""
        model = super().create_model(config, spec)
        if config.pretrained and not spec.extra.get("scratch"):
            model.classifier_prefix = cls.classifier  # type: ignore[assignment]
        return model
