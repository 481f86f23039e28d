"""Notes on settings that come from the model's family."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..settings import TrainConfig, flatten, overlay
from ..settings.decisions import Decision
from ..settings.families import family_of
from .facts import is_filled


def family_notes(config: TrainConfig, decided: Sequence[Decision]) -> list[str]:
    """Return a note on settings that come from the model's family, if there are any."""
    family = family_of(config.recipe, config.model.name)
    if family is None or is_filled(config):
        return []
    own = flatten(config)
    wanted = flatten(overlay(TrainConfig(), family.settings))
    names = [name for name in _leaves(family.settings) if own[name] == wanted[name]]
    patches = [one.value for one in decided if one.rule == "patches-of-small-images"]  # if no options are given
    values = [f"{name}={own[name]}" for name in names]
    values += [f"{name}={value}" for options in patches for name, value in options.items()]
    return [f"defaults for {family.name} models: {', '.join(values)} (override with --lr or --set)"] if values else []


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, value in settings.items():
        found += _leaves(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [f"{prefix}{name}"]
    return found
