"""Load published checkpoints safely, completely or with one clear error."""

import argparse
import logging
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from timm.models import adapt_input_conv
from torch import Tensor, nn

from ._identify import describe, list_backbones

Convertible = Any  # a `Backbone`, which cannot be imported here
_logger = logging.getLogger(__name__)

WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model")  # timm's order: averaged weights first


class CheckpointError(ValueError):
    """A file is not a readable checkpoint, or its weights do not fit the model."""


@dataclass
class LoadReport:
    """Result of fitting a checkpoint to a model.

    Attributes:
        state_dict: the weights in saccade's layout.
        missing: keys the model has and the file lacks.
        unexpected: keys the file has and the model lacks.
        mismatched: keys whose shapes differ, with both shapes.
        dropped: classifier weights left out because the number of classes differs.
        resized: position tables fitted to another grid, and input layers fitted to other channels.
    """

    state_dict: dict[str, Tensor] = field(repr=False)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)


def load_official(model: nn.Module, path: str | Path, *, strict: bool = True) -> LoadReport:
    """Load a published checkpoint, or one of saccade's, into a model.

    The weights may be nested in `model`, `model_ema`, `state_dict` or `state_dict_ema` (averaged weights are
    preferred). Code in the file is not executed. Position tables are resampled to the model's grid; a classifier for
    another number of classes is dropped with a warning. The model is only changed if everything fits.

    Args:
        model: a saccade backbone.
        path: a .pth, .pt, .bin or .safetensors file.
        strict: refuse missing and unexpected keys; if False, load what fits and report the rest.

    Returns:
        A report of loaded, missing, unexpected, dropped and resized tensors.
    """
    if not hasattr(model, "is_official"):
        raise TypeError(
            f"load_official takes a saccade backbone, got {type(model).__name__}; "
            "for a timm model use timm.models.load_checkpoint"
        )
    state_dict = read_checkpoint(path)
    try:
        report = adapt(model, state_dict, strict=strict)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    nn.Module.load_state_dict(model, report.state_dict, strict=False)
    _logger.info("Loaded %d tensors from %s", len(report.state_dict), path)
    return report


def adapt(model: Convertible, state_dict: Mapping[str, Tensor], *, strict: bool) -> LoadReport:
    """Convert a state dict to the model's layout and check every key and shape, without changing the model."""
    report = compare(model, state_dict)
    if report.mismatched or (strict and (report.missing or report.unexpected)):
        raise CheckpointError(_misfit(model, state_dict, report))
    for key in report.unexpected:
        del report.state_dict[key]
    return report


def compare(model: Convertible, state_dict: Mapping[str, Tensor]) -> LoadReport:
    """Convert a state dict to the model's layout and report what fits."""
    own = model.state_dict()
    converted = model.convert(state_dict)
    report = LoadReport(converted)
    given = {id(value) for value in state_dict.values()}
    report.resized = [k for k, v in converted.items() if k in own and "pos" in k and id(v) not in given]
    _fit_input_layer(model, own, report)
    _drop_classifier(model, own, report)
    # Missing batch counters have no effect.
    report.missing = [k for k in own if k not in converted and not k.endswith("num_batches_tracked")]
    if report.dropped:
        report.missing = [k for k in report.missing if not _is_classifier(model, k)]
    report.unexpected = [k for k in converted if k not in own]
    for key in [k for k in converted if k in own and converted[k].shape != own[k].shape]:
        report.mismatched.append(f"{key} (file {_sizes(converted[key])}, model {_sizes(own[key])})")
    return report


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """Read a file of weights without executing code in it.

    Returns:
        The state dict, unwrapped and without the prefixes that DDP and `torch.compile` add.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; a checkpoint (.pth, .pt, .bin, .safetensors) was expected")
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    for name in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
            break
    if not isinstance(content, Mapping) or not content:
        raise CheckpointError(
            f"{path}: holds {_kind(content)}; expected named tensors, at the top level or under {_list(WRAPPERS)}"
        )
    odd = [str(key) for key, value in content.items() if not (isinstance(key, str) and isinstance(value, Tensor))]
    if odd:
        raise CheckpointError(
            f"{path}: not a state dict, because {_list(odd)} {'is' if len(odd) == 1 else 'are'} not named tensors; "
            f"expected weights at the top level or under {_list(WRAPPERS)}"
        )
    return {key.removeprefix("module.").removeprefix("_orig_mod."): value for key, value in content.items()}


def suggest_name(file: Path) -> str:
    """Return advice for a file without a model name."""
    try:
        looks = describe(read_checkpoint(file))
    except (OSError, ValueError):
        return "; give a run's folder or its model.safetensors"
    named = looks if looks in list_backbones() else "NAME"
    return (
        f" and does not say which model it belongs to; it looks like {looks}. Name the model, as in {named}@{file}, "
        "or give a run's folder or its model.safetensors"
    )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a complete safetensors file ({error}); download or copy it again") from None


def _read_torch(path: Path) -> Any:
    # Swin-style scripts save their yacs configuration with the weights: read it as a dict.
    allowed: list[Any] = [argparse.Namespace, (OrderedDict, "yacs.config.CfgNode")]
    try:
        with torch.serialization.safe_globals(allowed):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        found = _foreign_objects(path)
        if not found:
            raise CheckpointError(f"{path}: not a checkpoint, or damaged; download or copy it again") from None
        raise CheckpointError(
            f"{path}: contains objects that would run code when loaded ({_list(found)}); refused. If you trust the "
            "file, load it elsewhere and save only its weights with torch.save(model.state_dict(), ...)"
        ) from None
    except Exception as error:  # torch raises many types for damaged files
        reason = str(error).strip().split("\n")[0]
        reason = type(error).__name__ if len(reason) < 5 else reason  # too short to be informative
        raise CheckpointError(f"{path}: not a checkpoint, or truncated ({reason}); download or copy it again") from None


def _foreign_objects(path: Path) -> list[str]:
    """Return the names of objects in a checkpoint other than tensors and plain values."""
    try:
        return torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except (ValueError, RuntimeError, EOFError, pickle.UnpicklingError):
        return []


def _is_classifier(model: Convertible, key: str) -> bool:
    return any(key == name or key.startswith(name + ".") for name in model.classifier)


def _drop_classifier(model: Convertible, own: Mapping[str, Tensor], report: LoadReport) -> None:
    """Drop classifier weights for another number of classes, all or none of them."""
    file = {k: v for k, v in report.state_dict.items() if _is_classifier(model, k)}
    other = {k for k, v in file.items() if k not in own or own[k].shape[:1] != v.shape[:1]}
    rows = {v.shape[0] for k, v in file.items() if k in other}
    if not other or any(k in own and own[k].shape[1:] != file[k].shape[1:] for k in other):
        return
    if model.num_classes and rows == {model.num_classes}:
        return
    for key in file:
        del report.state_dict[key]
    report.dropped = sorted(file)
    warnings.warn(
        f"the checkpoint's classifier has {_list(sorted(map(str, rows)))} classes, the model {model.num_classes}: "
        f"not loaded: {_list(report.dropped)}",
        stacklevel=5,
    )


def _fit_input_layer(model: Convertible, own: Mapping[str, Tensor], report: LoadReport) -> None:
    """Sum or repeat the first convolution over channels, unless the model has three."""
    cfg = getattr(model, "pretrained_cfg", None) or {}
    key = f"{cfg.get('first_conv')}.weight"
    weight = report.state_dict.get(key)
    if weight is None or key not in own or weight.ndim != 4 or weight.shape[1] != 3:
        return
    if own[key].shape[1] != 3 and own[key].shape[0] == weight.shape[0] and own[key].shape[2:] == weight.shape[2:]:
        report.state_dict[key] = adapt_input_conv(own[key].shape[1], weight)
        report.resized.append(key)


def _misfit(model: Convertible, state_dict: Mapping[str, Tensor], report: LoadReport) -> str:
    name = (getattr(model, "pretrained_cfg", None) or {}).get("architecture") or type(model).__name__
    parts = [f"these weights do not fit {name}: they look like {describe(state_dict)}"]
    for title, keys in (
        ("missing", report.missing),
        ("unexpected", report.unexpected),
        ("of a different shape", report.mismatched),
    ):
        if keys:
            parts.append(f"{len(keys)} {title}: {_list(keys)}")
    return "; ".join(parts) + ". Nothing was loaded"


def _list(names: Iterable[str], most: int = 6) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _sizes(x: Tensor) -> str:
    return "x".join(map(str, x.shape)) or "scalar"


def _kind(content: Any) -> str:
    return "nothing" if content is None or content == {} else f"a {type(content).__name__}"
