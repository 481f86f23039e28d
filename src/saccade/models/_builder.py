"""Builders for timm's registry."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg

from ._backbone import Backbone

BackboneT = TypeVar("BackboneT", bound=Backbone)
T = TypeVar("T")
SMALL_SIDE = 64  # largest side of small images
OPTIONS_ABOVE_SMALL: dict[str, dict[str, Any]] = {}  # options of models for small images, at larger sizes


def default_cfg(img_size: int = 224, *, stride: int | None = None, **overrides: Any) -> dict[str, Any]:
    """Return timm's data config with the settings of the published evaluation.

    Args:
        img_size: side of the images.
        stride: stride of the last map; None for columnar models.
        overrides: other entries.
    """
    side = None if stride is None else -(-img_size // stride)
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, img_size, img_size),
        "pool_size": None if side is None else (side, side),
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "classifier": "head",
        "license": "apache-2.0",
        **overrides,
    }


def build(cls: type[BackboneT], variant: str, pretrained: bool, given: Mapping[str, Any], **defaults: Any) -> BackboneT:
    """Build a model as timm does.

    Args:
        cls: the family's class.
        variant: registered name.
        pretrained: load weights, which the caller has to name (`pretrained_cfg_overlay`), since none are hosted.
        given: timm's builder options and the constructor's arguments.
        defaults: the variant's options, which given ones override.
    """
    kwargs = {**defaults, **given}
    stride = kwargs.pop("output_stride", 32)  # Hugging Face's TimmBackbone always passes it
    if stride != 32:
        raise ValueError(f"output_stride={stride} was given, but the strides of {variant} are fixed; remove it")
    # all stages; for columnar models the last three blocks
    out_indices = kwargs.pop("out_indices", cls.default_out_indices)
    if isinstance(out_indices, int) and "depth" in kwargs:
        out_indices = min(out_indices, kwargs["depth"])
    return build_model_with_cfg(
        cls,
        variant,
        pretrained,
        pretrained_filter_fn=lambda state_dict, model: model.convert(state_dict),
        feature_cfg={"out_indices": out_indices, "feature_cls": "getter"},
        **kwargs,
    )


def per_stage(name: str, value: T | Sequence[T], *, stages: int = 4) -> tuple[T, ...]:
    """Return one value per stage, from a single value or a sequence."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * stages
    if len(values) != stages:
        raise ValueError(f"{name}={value!r} has {len(values)} values; give one value, or {stages}, one per stage")
    return values


def check_stages(**lists: Sequence[Any]) -> None:
    """Refuse lists of different lengths: all have one entry per stage."""
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"options have values for different numbers of stages: {lengths}; give one value per stage")
