"""Build saccade's backbones with published weights, without running code of the file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from ..models import CheckpointError
from ..models._identify import describe, list_backbones
from ..models._official import adapt, read_checkpoint
from ..runs.metadata import CLASSES

# Errors raised by constructors with invalid options, and by models with weights of others.
MISFITS = (RuntimeError, LookupError, ValueError, TypeError, AttributeError, AssertionError, ArithmeticError)


def is_ours(name: str) -> bool:
    """Whether a model, by full name, is one of saccade's backbones."""
    return name in list_backbones()


def build_published(name: str, options: Mapping[str, Any], file: Path) -> tuple[nn.Module, int]:
    """Build one of saccade's backbones with a file's weights, without mismatches; return it and its channels.

    Args:
        name: name of the backbone.
        options: options of its constructor.
        file: .safetensors or .pth, in the published layout or saccade's.
    """
    weights = read_checkpoint(file)
    try:
        with torch.device("meta"):
            plain: Any = timm.create_model(name, **options)
        classes, channels = _counts(plain, plain.convert(weights))
        model: Any = timm.create_model(name, num_classes=classes, in_chans=channels, **options)
        report = adapt(model, weights, strict=True)
    except MISFITS as error:
        detail = " ".join(str(error).split())[:400] or type(error).__name__
        raise CheckpointError(f"{file} cannot be loaded as {name}: {detail}") from None
    nn.Module.load_state_dict(model, report.state_dict, strict=False)
    return model, channels


def _counts(model: Any, weights: Mapping[str, Tensor]) -> tuple[int, int]:
    """Return the numbers of classes and channels of weights under a model's names."""
    heads = tuple(f"{name}." for name in model.classifier)
    rows = {value.shape[0] for key, value in weights.items() if key.startswith(heads) and value.ndim}
    if len(rows) != 1 or not 0 < min(rows) <= CLASSES:
        found = f"classifiers for {' and '.join(map(str, sorted(rows)))} classes" if rows else "no classifier"
        looks = describe(weights)
        then = (
            ("train a classifier with --checkpoint")
            if looks == model.pretrained_cfg.get("architecture")
            else "name that model"
        )
        raise ValueError(f"it has {found}, and looks like {looks}: {then}")
    first = weights.get(f"{model.pretrained_cfg.get('first_conv')}.weight")
    channels = first.shape[1] if first is not None and first.ndim == 4 else 3
    return rows.pop(), channels if channels in (1, 3) else 3
