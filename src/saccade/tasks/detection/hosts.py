"""Build detectors: a timm backbone with a head, or a Hugging Face model."""

from typing import Any

from torch import nn

from ...data.spec import InputSpec
from ...settings import ConfigError, ModelConfig
from ..hosting import TransformersHosts
from ..segmentation.pyramid import any_size_options
from .detector import Detector
from .hosted import HostedDetector

DEFAULT_HEAD = "mask_rcnn"


class DetectionHosts(TransformersHosts):
    """Builds detectors."""

    host_kind, host = "OBJECT_DETECTION", HostedDetector

    @classmethod
    def model_options(cls, name: str, spec: InputSpec) -> dict[str, Any]:
        """Return options for images of any size."""
        return any_size_options(name)

    @classmethod
    def add_head(cls, model: nn.Module, config: ModelConfig, spec: InputSpec) -> nn.Module:
        """Add a head to a backbone; Hugging Face models are returned unchanged."""
        if isinstance(model, HostedDetector):
            spec.extra.setdefault("overlap", model.overlap)
            spec.extra["masks"] = False
            return model
        if config.probe:
            raise ConfigError(
                "model.probe was given, but it is for classifiers only: a detector's head is trained as a whole"
            )
        masks = bool(spec.extra.get("masks"))
        made = Detector(model, config.head or DEFAULT_HEAD, num_classes=len(spec.outputs), masks=masks)
        spec.extra.setdefault("overlap", made.head.overlap)
        made.head.kept = max(made.head.kept, int(spec.extra.get("kept", 0)))
        spec.extra["masks"] = made.head.mask_side > 0
        made.head.halve_anchors(int(spec.extra.get("halvings", 0)))
        return made
