"""Rules that decide settings, each with a reason, and the record of who decided what."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..support.files import write_text
from .facts import Facts
from .schema import TrainConfig, flatten
from .values import short

FILE = "decisions.json"  # in a run's folder
# Settings that ask for a rule and are null once it has decided.
ASKS = ("optim.least_steps", "augment.full_epochs", "schedule.steps", "model.cpu_head")
WHO = ("recipe", "family", "you", "model", "task", "set", "machine", "budget")  # beside "default"


class Change(NamedTuple):
    """Settings by dotted name, and why they are set.

    Attributes:
        remark: printed when a run begins.
        stays: settings that keep their value, since what decides them is known only later: `why` says what and when.
    """

    values: Mapping[str, Any]
    why: str
    remark: str = ""
    stays: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One reason to change settings.

    Attributes:
        name: of the rule, by which it is left out.
        who: one of `WHO`.
        needs: names of the facts without which it decides nothing.
        decide: from settings and facts to a change, or None.
    """

    name: str
    who: str
    needs: tuple[str, ...]
    decide: Callable[[TrainConfig, Facts], Change | None]


@dataclass(frozen=True)
class Decision:
    """A setting that was changed, by whom and why."""

    setting: str
    value: Any
    before: Any
    who: str
    rule: str
    why: str


def decide(
    config: TrainConfig,
    facts: Facts,
    rules: Iterable[Rule],
    *,
    record: list[Decision] | None = None,
    remarks: list[str] | None = None,
    without: Collection[str] = (),
) -> TrainConfig:
    """Return settings after all rules in turn.

    Args:
        record: takes every change, in order.
        remarks: takes what rules have to say to the user.
        without: names of rules that are left out.
    """
    for rule in rules:
        if rule.name in without or any(getattr(facts, need) is None for need in rule.needs):
            continue
        change = rule.decide(config, facts)
        if change is None:
            continue
        changed = put(config, change.values)
        if record is not None:
            record += decisions_between(config, changed, who=rule.who, rule=rule.name, why=change.why)
            kept = flatten(config)
            record += [Decision(name, kept[name], kept[name], rule.who, rule.name, change.why) for name in change.stays]
        if remarks is not None and change.remark:
            remarks.append(change.remark)
        config = changed
    return config


def decisions_between(before: TrainConfig, after: TrainConfig, *, who: str, rule: str, why: str) -> list[Decision]:
    """Return a decision for each setting in which two trees differ."""
    old = flatten(before)
    return [Decision(name, value, old[name], who, rule, why) for name, value in between(before, after).items()]


def between(before: TrainConfig, after: TrainConfig) -> dict[str, Any]:
    """Return the settings of a tree that are others than in another, by dotted name."""
    old = flatten(before)
    return {name: value for name, value in flatten(after).items() if value != old[name]}


def put(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """Return settings with some replaced as they are, by dotted name: a mapping is not joined with the one before."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        group, _, last = name.rpartition(".")
        groups.setdefault(group, {})[last] = value
    own = groups.pop("", {})
    return replace(config, **own, **{group: replace(getattr(config, group), **new) for group, new in groups.items()})


def latest(record: Sequence[Decision], config: TrainConfig) -> dict[str, Decision]:
    """Return who decided each value of settings, by dotted name; what nobody decided is the default."""
    values = {name: _plain(value) for name, value in flatten(config).items()}
    found = {one.setting: one for one in record}
    return {name: one for name, one in found.items() if name in values and _plain(one.value) == values[name]}


def beside_recipe(record: Sequence[Decision], config: TrainConfig) -> list[Decision]:
    """Return the last decision on each setting that differs from the recipe, with the recipe's value before it."""
    recipe: dict[str, Any] = {}
    for one in record:
        recipe.setdefault(one.setting, one.before)
        if one.who == "recipe" and one.rule in ("recipe", "variants"):
            recipe[one.setting] = one.value
    found = [replace(one, before=recipe[one.setting]) for one in latest(record, config).values()]
    order = list(flatten(config))
    changed = [one for one in found if _plain(one.value) != _plain(one.before) and one.setting not in ASKS]
    return sorted(changed, key=lambda one: order.index(one.setting))


def decided_later(record: Sequence[Decision], config: TrainConfig) -> list[Decision]:
    """Return the decisions that are made when training starts: their settings keep their value until then."""
    return [one for one in latest(record, config).values() if _plain(one.value) == _plain(one.before)]


def say_decision(one: Decision) -> str:
    """Return a decision in one line."""
    before = "" if _plain(one.value) == _plain(one.before) else f" (recipe: {_shown(one.before)})"
    return f"{one.setting} = {_shown(one.value)}{before}; {_reason(one)}"


def _reason(one: Decision) -> str:
    return one.why if one.who == one.rule == "you" else f"{one.who}, {one.rule}: {one.why}"


def differing(reference: Sequence[Decision], own: Sequence[Decision]) -> list[tuple[Decision | None, Decision | None]]:
    """Return pairs of decisions on one setting that differ in value or in who decided; None: it is the recipe's."""
    first, second = ({one.setting: one for one in decisions} for decisions in (reference, own))
    pairs = [(first.get(name), second.get(name)) for name in {**first, **second}]
    return [
        (a, b) for a, b in pairs if a is None or b is None or (_plain(a.value), a.rule) != (_plain(b.value), b.rule)
    ]


def say_who(one: Decision | None) -> str:
    """Return a value with who decided it; None stands for the recipe."""
    return "the recipe's" if one is None else f"{_shown(one.value)} ({_reason(one)})"


def write_decisions(folder: Path, record: Sequence[Decision]) -> None:
    """Keep the decisions of a run in its folder."""
    listed = [asdict(decision) for decision in record]
    write_text(folder / FILE, json.dumps(listed, indent=1, ensure_ascii=False, default=str))


def read_decisions(folder: Path) -> list[Decision]:
    """Return the decisions of a run; none of one that an earlier version wrote."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return [Decision(**one) for one in found]
    except (OSError, ValueError, TypeError):
        return []


def _plain(value: Any) -> Any:
    """Return a value as JSON gives it back."""
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    return "null" if value is None else short(str(value))
