"""Reader of visual question answering."""

from ...data.open import Data
from ...data.spec import InputSpec
from ...settings import ConfigError, DataConfig, ModelConfig
from ..reader import Reader
from .data import AnswerTargets, open_questions
from .hosts import QuestionHosts
from .rules import SCALE


class QuestionReader(Reader):
    """Reads questions."""

    reads = "question"
    read_by = ("answers",)

    def open(self, config: DataConfig) -> Data:
        """Open questions about images."""
        return open_questions(config, self.options)

    def complete_spec(self, spec: InputSpec, data: Data, model: ModelConfig) -> None:
        """Store the model's configuration and tokenizer."""
        targets = data.val.targets
        assert isinstance(targets, AnswerTargets)
        QuestionHosts.describe_model(spec, model, dict(targets.how), pair=False)
        if self.options.dropout is not None:
            spec.extra["host"]["config"]["hidden_dropout_prob"] = self.options.dropout
        spec.mean, spec.std = list(SCALE), list(SCALE)  # also of earlier runs, whose settings say otherwise
        if targets.keep_aspect:
            patch = spec.extra["host"]["config"]["patch_size"]
            if spec.img_size < patch:
                raise ConfigError(
                    f"data.img_size = {spec.img_size} was given, but a patch of {model.name} has {patch} pixels; give "
                    "at least as many"
                )
            spec.extra["patch"] = patch

    def check_spec(self, spec: InputSpec) -> None:
        """Refuse an invalid side of patches."""
        patch = spec.extra.get("patch")
        if patch is not None and not (type(patch) is int and 1 <= patch <= spec.img_size):
            raise ValueError("the side of patches in its spec is not a whole number up to the image's")
