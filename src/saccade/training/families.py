"""What a run takes from its model's family: numbers, which it says, and patches that suit small images."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from ..config import TrainConfig, flatten, overlay
from ..models._builder import SMALL_SIDE
from ..settings.families import family_of


def family_notes(config: TrainConfig, options: Mapping[str, Any]) -> list[str]:
    """Return a line on settings that come from the model's family; nothing where there are none."""
    family = family_of(config.recipe, config.model.name)
    if family is None or _resolved(config):
        return []
    own = flatten(config)
    wanted = flatten(overlay(TrainConfig(), family.settings))
    names = [name for name in _leaves(family.settings) if own[name] == wanted[name]]
    values = [f"{name}={own[name]}" for name in names] + [f"{name}={value}" for name, value in options.items()]
    return [f"defaults for {family.name} models: {', '.join(values)} (override with --lr or --set)"] if values else []


def small_options(config: TrainConfig, name: str, side: int) -> dict[str, Any]:
    """Return options that give a model enough patches of small images, unless the user gave options or weights."""
    model, family = config.model, family_of(config.recipe, name)
    if family is None or family.patches is None or side > SMALL_SIDE or _resolved(config):
        return {}
    if model.options or model.pretrained or model.checkpoint is not None or not fnmatchcase(name, family.only):
        return {}
    wanted = side / family.patches
    patch = min((size for size in range(1, side + 1) if side % size == 0), key=lambda size: (abs(size - wanted), size))
    stride = {} if family.strides is None else {"stride": max(round(side / family.strides), 1)}
    return {"patch_size": patch, **stride, **family.options}


def _resolved(config: TrainConfig) -> bool:
    """Whether settings were filled in before: those of a run that is resumed stay as they are."""
    return config.data.mean is not None and config.engine.compile is not None


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, value in settings.items():
        found += _leaves(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [f"{prefix}{name}"]
    return found
