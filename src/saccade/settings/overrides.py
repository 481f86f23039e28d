"""A user's settings laid over a recipe's: what is given wins, option by option where both name the same thing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from .changes import overlay
from .named import combine, name_of
from .schema import TrainConfig
from .values import ConfigError

NAMED = ("task", "model.head")  # settings whose value is one name with options
ADDED = "plug-ins put on"  # beside a recipe's, no name of a setting: model.plugins gives the whole list instead
# Settings that say the same as another: where a user gives one, a recipe's other one gives way.
INSTEAD = {
    "schedule.epochs": ("schedule.steps",),
    "schedule.warmup": ("schedule.warmup_steps", "schedule.warmup_share"),
    "schedule.warmup_share": ("schedule.warmup_steps",),
    "schedule.warmup_steps": ("schedule.warmup_share",),
}
NONE = "none"  # takes off those of the recipe


def put_on(below: Sequence[str], added: Iterable[str], *, known: Sequence[str] = ()) -> list[str]:
    """Return plug-ins with others after them; one that is there already has its options changed instead.

    Args:
        added: of a user; "none" first takes off all that are there.
        known: plug-ins that are not there, and whose options hold where one of them is added.
    """
    found, seen = list(below), set[str]()
    for text in added:
        name = name_of(text)
        if name == NONE and not seen:
            found = []
            known = ()
            continue
        if name in seen:
            raise ConfigError(f"the plug-in {name} was given twice; give it once, with all of its options")
        seen.add(name)
        place = next((place for place, own in enumerate(found) if name_of(own) == name), len(found))
        known_as = next((own for own in [*found, *known] if name_of(own) == name), None)
        found[place : place + 1] = [combine(known_as, text) or text]
    return found


def lay_over(config: TrainConfig, given: Mapping[str, Any], *, source: str, known: Sequence[str] = ()) -> TrainConfig:
    """Return settings with those of a user over them; `known` as for `put_on`."""
    plain = {name: value for name, value in dotted(given).items() if name != ADDED}
    changed = overlay(config, plain, source=source)
    named = {name: combine(_get(config, name), _get(changed, name)) for name in NAMED if name in plain}
    plugins = put_on(changed.model.plugins, given.get(ADDED) or (), known=known)
    refuse_twice(plugins)
    return overlay(changed, {**named, "model.plugins": plugins})


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted name with others over them, as if both had been laid over a recipe in turn."""
    found = {**below, **above}
    for setting, others in INSTEAD.items():
        for other in others:
            for one, gone in ((setting, other), (other, setting)):
                if above.get(one) is not None and gone not in above:
                    found.pop(gone, None)
    for name in NAMED:
        if isinstance(below.get(name), str) and isinstance(above.get(name), str):
            found[name] = combine(below[name], above[name])
    options = [one.get("model.options") for one in (below, above)]
    if "model.name" not in above and all(isinstance(one, Mapping) for one in options):
        found["model.options"] = {**(options[0] or {}), **(options[1] or {})}
    return found


def dotted(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings whose groups are written out, `optim.lr` for {"optim": {"lr": ...}}."""
    groups = {item.name for item in fields(TrainConfig) if is_dataclass(item.type)}
    found: dict[str, Any] = {}
    for name, value in given.items():
        whole = name in groups and isinstance(value, Mapping)
        found |= {f"{name}.{key}": own for key, own in value.items()} if whole else {name: value}
    return found


def names_of(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings that a user gave, by dotted name."""
    return tuple("model.plugins" if name == ADDED else name for name in given)


def refuse_twice(plugins: Sequence[str]) -> None:
    """Refuse a plug-in that stands in a list twice: it would be put on twice."""
    names = [name_of(text) for text in plugins]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"model.plugins = {list(plugins)} lists the plug-in {twice} twice; list it once")


def _get(config: TrainConfig, name: str) -> Any:
    return config.task if name == "task" else config.model.head
