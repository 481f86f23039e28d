"""Freeze parts of a model: all except the classifier, or the lower layers."""

from typing import Any

from timm.models import group_parameters
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..settings import ConfigError


def freeze_all_but_classifier(model: Any) -> None:
    """Freeze everything except the classifier (linear probing)."""
    if not hasattr(model, "get_classifier"):
        raise ConfigError(f"model.probe is set, but {type(model).__name__} has no `get_classifier`")
    heads = model.get_classifier()
    heads = heads if isinstance(heads, tuple) else (heads,)
    kept = {id(p) for head in heads for p in head.parameters()}
    if not kept:
        raise ConfigError(f"model.probe is set, but the classifier of {type(model).__name__} has no parameters")
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in kept)


def freeze_lower(model: Any, share: float) -> None:
    """Freeze the first layers.

    Args:
        model: a model with `group_matcher`.
        share: fraction of its layers.
    """
    if not hasattr(model, "group_matcher"):
        raise ConfigError(
            f"model.freeze = {share} needs a model with `group_matcher`, which {type(model).__name__} lacks; remove "
            "it, or train only the classifier with model.probe=true"
        )
    layers = group_parameters(model, model.group_matcher())
    numbers = sorted(layers)
    named = dict(model.named_parameters())
    for number in numbers[: round(share * (len(numbers) - 1))]:  # never the last layer, the classifier
        for name in layers[number]:
            named[name].requires_grad_(False)


def freeze_mode(model: nn.Module, *, statistics: bool = False) -> None:
    """Put frozen modules into evaluation mode, without dropout and updates of running statistics.

    Args:
        model: the model, in training mode.
        statistics: also freeze the statistics of pretrained batch norms, whose scales are still trained.
    """
    if not statistics and all(parameter.requires_grad for parameter in model.parameters()):
        return
    new: frozenset[str] = getattr(model, "new_parameters", frozenset())
    for name, module in model.named_modules():
        own = list(module.parameters())
        filled = isinstance(module, _BatchNorm) and f"{name}.weight" not in new
        if own and ((statistics and filled) or not any(parameter.requires_grad for parameter in own)):
            module.eval()
