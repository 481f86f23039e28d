"""Build segmenters: a timm backbone with a head, or a Hugging Face model."""

from typing import Any

import torch
from torch import Tensor, nn

from ...data.spec import InputSpec
from ...settings import ConfigError, ModelConfig
from ..hosting import TransformersHosts
from .heads import Segmenter
from .hosted import HostedSegmenter
from .pyramid import any_size_options, fixed_side

DEFAULT_HEAD = "upernet"


class SegmentationHosts(TransformersHosts):
    """Builds segmenters."""

    host_kind, host = "UNIVERSAL_SEGMENTATION", HostedSegmenter

    @classmethod
    def model_options(cls, name: str, spec: InputSpec) -> dict[str, Any]:
        """Return options for images of any size, or for a size divisible by the strides."""
        side = fixed_side(name, spec.img_size)
        return any_size_options(name) if side is None else {"img_size": side}

    @classmethod
    def add_head(cls, model: nn.Module, config: ModelConfig, spec: InputSpec) -> nn.Module:
        """Add a head to a backbone; Hugging Face models are returned unchanged."""
        if isinstance(model, HostedSegmenter):
            return model
        if config.probe:
            raise ConfigError(
                "model.probe was given, but it is for classifiers only: a segmentation head is trained as a whole"
            )
        name = (getattr(model, "pretrained_cfg", None) or {}).get("architecture", "")
        side = fixed_side(name, spec.img_size) if name else None
        side = side and config.options.get("img_size", side)
        made = Segmenter(model, config.head or DEFAULT_HEAD, num_classes=len(spec.outputs), side=side)
        if side is not None:
            _try_once(made, torch.zeros(1, spec.in_chans, side, side), name)
        return made


def _try_once(model: nn.Module, images: Tensor, name: str) -> None:
    """Refuse a fixed-size backbone whose maps do not fit together, by running it."""
    try:
        with torch.no_grad():
            model.eval()(images)
    except (RuntimeError, AssertionError) as error:
        side = images.shape[-1]
        raise ConfigError(
            f"{name} has no feature maps that a head can combine at {side} x {side} pixels ({error}); choose another "
            "model, or another --img-size"
        ) from None
    model.train()
