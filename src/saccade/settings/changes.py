"""Settings laid over others, each checked against the schema."""

import dataclasses
import difflib
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from .aliases import find_alias
from .schema import TrainConfig, flatten
from .text import RETIRED
from .values import ConfigError, at, short

ConfigT = TypeVar("ConfigT")


def leave_out(config: TrainConfig, names: Sequence[str], reason: str) -> tuple[TrainConfig, list[str]]:
    """Return settings without some augmentation and smoothing of labels, and a remark on what was asked of it."""
    left = [name for name in names if getattr(config.augment, name)] + ["smoothing"] * bool(config.loss.smoothing)
    nothing: dict[str, Any] = dict.fromkeys(names, 0.0)
    augment = replace(config.augment, **nothing)
    config = replace(config, augment=augment, loss=replace(config.loss, smoothing=0.0))
    return config, [f"{', '.join(left)}: turned off, because {reason}"] if left else []


def overlay(config: ConfigT, values: Mapping[str, Any], *, source: str = "the settings") -> ConfigT:
    """Return a copy of a settings tree with values replaced, each checked against the tree's types.

    A head without another one for CPUs is that of any machine.

    Args:
        values: nested, or with dotted names, or both.
        source: where the values come from, for errors; empty for what the user gave.
    """
    tree = _nested(values, source)
    if isinstance(tree.get("model"), dict) and "head" in tree["model"]:
        tree["model"].setdefault("cpu_head", None)
    return _overlay(config, tree, source, "")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that names what was most likely meant; nothing if that is unclear."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _nested(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise ConfigError(f"{at(source)}the name {short(repr(name))} was given; names of settings are strings")
        *groups, last = name.split(".")
        place = tree
        for group in groups:
            place = place.setdefault(group, {})
            if not isinstance(place, dict):
                raise ConfigError(
                    f"{at(source)}{short(name)} and {short(group)} = {short(repr(place))} were given; "
                    f"{short(group)} is a group of settings"
                )
        if isinstance(value, Mapping) and isinstance(place.get(last), dict):
            place[last] |= value
        else:
            place[last] = dict(value) if isinstance(value, Mapping) else value
    return tree


def _overlay(config: Any, values: Mapping[str, Any], source: str, prefix: str) -> Any:
    hints = typing.get_type_hints(type(config))
    changes = {}
    for name, value in values.items():
        full = f"{prefix}{name}"
        if name not in hints:
            if full in RETIRED:
                raise ConfigError(f"{at(source)}{full} is no longer a setting: {RETIRED[full].now}; remove it")
            near = _nearest(config, short(full), prefix, hints)
            raise ConfigError(f"{at(source)}unknown setting {short(full)!r}{near}")
        current = getattr(config, name)
        if full == "engine.kernels" and value is False:
            value = "off"  # as YAML reads the word
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                given = short(repr(value))
                raise ConfigError(
                    f"{at(source)}{full} = {given} was given; it is a group of settings: name one in it, e.g. "
                    f"{full}.{next(iter(typing.get_type_hints(type(current))))}"
                )
            changes[name] = _overlay(current, value, source, f"{full}.")
        else:
            changes[name] = {**current, **value} if isinstance(current, dict) and isinstance(value, Mapping) else value
    try:
        return dataclasses.replace(config, **changes)
    except ConfigError as error:
        raise ConfigError(f"{at(source)}{error}") from None


def _nearest(config: Any, full: str, prefix: str, hints: Mapping[str, Any]) -> str:
    names = [f"{prefix}{name}" for name in hints]
    everywhere = list(flatten(config, prefix))
    last = full.rsplit(".", 1)[-1]
    if (alias := find_alias(full)) is not None and last not in hints:
        return f"; did you mean {alias!r}?"
    close = difflib.get_close_matches(full, names + everywhere, n=1, cutoff=0.6) or [
        name for name in everywhere if name.rsplit(".", 1)[-1] == last
    ]
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; choose from {', '.join(names)}"
