"""Metadata of files of weights, checked before a model is built from it.

Files may be untrusted. Metadata can name a model registered with timm and plain arguments of its constructor. It cannot
open other files or networks, and building the model takes no more memory than its weights account for.
"""

import json
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..models import CheckpointError
from ..models._constructors import constructor_options
from ..models._official import suggest_name
from ..settings import ModelConfig, overlay, short

KEY = "saccade"
VERSION = 2  # version of metadata; since 2 all options of the model are included
SIDE, SHORTER, CLASSES = 8192, 65536, 1_000_000  # largest values
TEXT, ITEMS, NUMBER = 200, 256, 2**20  # limits on an option's characters, entries and numbers
PLUGINS, PLUGIN_TEXT = 32, 4096  # most plug-ins, and characters of one, which may have a long path
SPARE_ELEMENTS, SPARE_TENSORS = 2**26, 10_000  # allowance for buffers besides the weights, such as masks
MAKERS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)


class MetadataError(CheckpointError):
    """Invalid metadata in a file of weights."""


def read_about(file: Path) -> dict[str, Any]:
    """Return a file's metadata, unchecked; empty if there is none."""
    try:
        with safe_open(file, framework="pt") as opened:
            about = json.loads((opened.metadata() or {}).get(KEY, "{}"))
    except (OSError, SafetensorError, ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def read_described(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a file's metadata, unchecked, and its weights."""
    if not file.exists():
        raise CheckpointError(f"{file} does not exist")
    if not file.is_file():
        raise CheckpointError(f"{file} is not a regular file; give a run's folder or its model.safetensors")
    try:
        with safe_open(file, framework="pt") as opened:
            about = json.loads((opened.metadata() or {})[KEY])
        weights = load_file(file)
        if not isinstance(about, dict):
            raise ValueError
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from None
    except (SafetensorError, KeyError, ValueError, RecursionError):
        raise CheckpointError(f"{file} was not written by saccade{suggest_name(file)}") from None
    about.setdefault("outputs", about.get("classes"))  # the key in earlier versions
    missing = [name for name in ("model", "outputs", "in_chans", "img_size", "mean", "std") if about.get(name) is None]
    if missing:
        raise MetadataError(
            f"the metadata of {file} lacks {', '.join(missing)}; give the unmodified file that training wrote"
        )
    return about, weights


def check_inputs(about: Mapping[str, Any]) -> None:
    """Raise ValueError for invalid outputs, channels, sizes or normalisation."""
    outputs, channels, side = about["outputs"], about["in_chans"], about["img_size"]
    if type(outputs) not in (list, tuple) or not 0 < len(outputs) <= CLASSES:
        raise ValueError(f"outputs = {short(repr(outputs))}; it must be a list of names")
    if not all(isinstance(name, str) for name in outputs):
        raise ValueError("outputs contains values that are not strings; it must be a list of names")
    if not isinstance(about.get("task", ""), str) or not isinstance(about.get("extra", {}), dict):
        raise ValueError("task must be a name, and extra a mapping of names to values")
    if type(channels) is not int or channels not in (1, 3):
        raise ValueError(f"in_chans = {short(repr(channels))}; it must be 1 or 3")
    if type(side) is not int or not 1 <= side <= SIDE:
        raise ValueError(f"img_size = {short(repr(side))}; it must be a whole number from 1 to {SIDE}")
    for name in ("mean", "std"):
        values = about[name]
        if type(values) not in (list, tuple) or len(values) != channels or not all(map(_is_number, values)):
            raise ValueError(f"{name} = {short(repr(values))}; it must be a list of numbers, one per channel")
    if not all(value > 0 for value in about["std"]):
        raise ValueError(f"std = {short(repr(about['std']))}; each value must be above 0")
    shorter = about.get("shorter")
    if shorter is not None and (type(shorter) is not int or not side <= shorter <= SHORTER):
        raise ValueError(
            f"shorter = {short(repr(shorter))}; it must be null, or a whole number from {side} to {SHORTER}"
        )


def check_model(values: Any, *, resolve: Callable[[str], str] | None) -> ModelConfig:
    """Return the model settings of metadata, or raise ValueError for what is not allowed.

    Args:
        resolve: returns the full name of a timm model, or raises ValueError; None for models that are built from the
            rest of the metadata, without options.
    """
    if not isinstance(values, dict):
        raise ValueError(f"model = {short(repr(values))}; it must be a mapping of names to values")
    config = overlay(ModelConfig(), values, source="its description")
    name = config.name if resolve is None else resolve(config.name)
    for opened in ("pretrained", "checkpoint"):
        if value := getattr(config, opened):
            raise ValueError(f"model.{opened} = {short(repr(value))}; a weights file must not refer to other files")
    if len(config.plugins) > PLUGINS or any(len(text) > PLUGIN_TEXT for text in config.plugins):
        raise ValueError(
            f"{len(config.plugins)} plug-ins; at most {PLUGINS} are allowed, each of at most {PLUGIN_TEXT} characters"
        )
    allowed = {} if resolve is None else constructor_options(name)
    for option, value in config.options.items():
        if option not in allowed:
            raise ValueError(
                f"model.options has {short(repr(option))}, which is not an argument of {name}'s constructor"
            )
        if not takes(value, allowed[option]):
            raise ValueError(f"model.options.{option} = {short(repr(value))}, which {name} does not accept")
    return config


@contextmanager
def described_by(file: Path, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Context for building a file's model: limits memory, and makes errors readable."""
    elements = sum(tensor.numel() for tensor in weights.values())
    try:
        with _MemoryLimit(elements=4 * elements + SPARE_ELEMENTS, tensors=16 * len(weights) + SPARE_TENSORS):
            yield
    except Exception as error:  # constructors raise many types for invalid options
        detail = " ".join(str(error).split())[:300] or type(error).__name__
        raise MetadataError(
            f"{file} describes a model that cannot be built: {detail}. Give the unmodified file that training wrote"
        ) from error


class _MemoryLimit(TorchFunctionMode):
    """Raises if more or larger tensors are created than allowed, before memory is allocated."""

    def __init__(self, *, elements: int, tensors: int) -> None:
        super().__init__()
        self.elements, self.tensors = elements, tensors

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in MAKERS:
            size = (kwargs or {}).get("size", args[0] if args and isinstance(args[0], list | tuple) else args)
            self.elements -= math.prod(part for part in size if isinstance(part, int))
            self.tensors -= 1
            if self.elements < 0 or self.tensors < 0:
                raise ValueError("it needs far more memory than its weights account for")
        return func(*args, **(kwargs or {}))


def takes(value: Any, hint: Any) -> bool:
    """Whether an option may have a value: a plain one that matches its type hint."""
    return _is_plain(value) and _fits(value, hint)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_plain(value: Any, depth: int = 4) -> bool:
    """Whether a value consists of small numbers, short strings, and short lists and dicts of these."""
    if isinstance(value, dict) and not all(isinstance(name, str) for name in value):
        return False  # JSON keys are strings
    if isinstance(value, list | tuple | dict):
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        return depth > 0 and len(value) <= ITEMS and all(_is_plain(part, depth - 1) for part in parts)
    if isinstance(value, str):
        return len(value) <= TEXT
    return value is None or isinstance(value, bool) or (_is_number(value) and abs(value) <= NUMBER)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value matches a type hint; classes and functions never do."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, arg) for arg in args)
    if origin is Literal:
        return value in args
    if origin in (list, tuple, Sequence):
        kinds = [arg for arg in args if arg is not Ellipsis] or [Any]
        return isinstance(value, list | tuple) and all(any(_fits(part, kind) for kind in kinds) for part in value)
    if origin is dict or hint is dict:
        return isinstance(value, dict)
    if hint in (int, float):
        return _is_number(value)  # hints do not distinguish them
    return type(value) is hint
