"""Tune the arms before a comparison, with the same candidates on the same part of the training set."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...settings import ConfigError, TrainConfig
from ...settings.strength import frozen_augmentation
from ...support.durations import say_duration
from ...tasks.metric import MetricSpec
from ...training.engine import torch_settings
from ...training.pace import measure_pace
from ...training.trial import prepare_ground
from ...tuning.choice import ALARM, choose
from ...tuning.halving import Rung, describe_rungs
from ...tuning.search import Attempt, TuningTarget, edges_of, fit_rungs, run_search
from ...tuning.space import Axis, candidates, find_axes, settings_of
from ...tuning.store import Store
from .plan import Note
from .snapshot import DataCache


@dataclass(frozen=True)
class TunedArms:
    """Result of tuning the arms."""

    axes: tuple[Axis, ...]  # what was tried
    rungs: tuple[Rung, ...]  # the rounds
    attempts: tuple[Attempt, ...]  # every trial
    values: Mapping[str, Mapping[str, Any]]  # of the candidate that each arm got
    settings: Mapping[str, Mapping[str, Any]]  # the same by dotted name, laid over the arm's
    own: tuple[str, ...]  # arms whose settings differ from those that are best on average
    # setting whose best value is at the end of what was tried, with which end, by arm
    edges: Mapping[str, Mapping[str, str]]
    metric: MetricSpec  # that trials were judged by
    seconds: float  # that each arm was given
    trained_on: int | None  # samples of a trial
    judged_on: int  # others of the training samples


def tune_arms(
    configs: Mapping[str, TrainConfig],
    fixed: Mapping[str, Sequence[str]],
    cache: DataCache,
    store: Store,
    *,
    reference: str,
    seconds: float,
    again: bool,
    device: torch.device,
    say: Callable[[str], None],
) -> TunedArms:
    """Tune arms together; trials that are finished in the folder are reused.

    Args:
        fixed: settings that are each arm's own, which no candidate changes.
        reference: the arm whose settings the candidates lie around.
        seconds: for each arm.
        again: whether this was done before: then only what was tried counts, so that the same settings are found.
    """
    until = time.monotonic() + seconds * len(configs)
    targets = []
    for name, config in configs.items():
        choice, data = cache.open(config)
        resolved, ground = prepare_ground(config, choice, data, device)
        targets.append(TuningTarget(name, resolved, ground, tuple(fixed[name])))
    base = next(one for one in targets if one.name == reference)
    shared = [name for name in fixed[reference] if all(name in names for names in fixed.values())]
    axes = find_axes(configs[reference], base.config, shared)
    if not axes:
        raise ConfigError(
            "tune has nothing to search, since learning rate, weight decay and augmentation are all set; remove one "
            "of them, or tune"
        )
    request = {"seconds": seconds}
    known = store.begin(request, overwrite=True)
    until = time.monotonic() if again else until - store.seconds_used()
    if known:
        rungs = [Rung(*one) for one in known["rungs"]]
    else:
        rungs = _plan(base, axes, seconds, len(targets), until, device)
        store.decide(request, rungs=[[rung.count, rung.epochs] for rung in rungs])
    say(
        f"tuning {len(targets)} arms, {say_duration(seconds)} each, on the training set only; candidates: "
        f"{describe_rungs(rungs)}"
    )
    chosen = candidates(axes, rungs[0].count)
    attempts = run_search(targets, chosen, rungs, store, device=device, until=until, say=say)
    found = choose(attempts, list(configs), larger=base.ground.metric.larger_is_better)
    if found is None:
        raise ConfigError(
            f"no candidate finished in all arms within {say_duration(seconds)} each; allow more time with --tune, or "
            "run again to continue: finished trials are kept"
        )
    edges = {name: edges_of(axes, [one for one in attempts if one.arm == name], found.values[name]) for name in configs}
    settings = {one.name: _settings(one, found.values[one.name]) for one in targets}
    data = base.ground.data
    return TunedArms(
        axes=axes,
        rungs=tuple(rungs),
        attempts=tuple(attempts),
        values=found.values,
        settings=settings,
        own=found.own,
        edges={name: ends for name, ends in edges.items() if ends},
        metric=replace(base.ground.metric, statistic=None),
        seconds=seconds,
        trained_on=None if not hasattr(data.train, "__len__") else len(data.train),
        judged_on=len(data.val),
    )


def _plan(
    base: TuningTarget, axes: Sequence[Axis], seconds: float, arms: int, until: float, device: torch.device
) -> list[Rung]:
    config = base.trial_config({}, base.config.schedule.epochs)
    with torch_settings(config, device):
        pace = measure_pace(config, base.ground.choice, base.ground.data, device)
    left = (until - time.monotonic()) / arms
    return fit_rungs(axes, left, pace, most=base.config.schedule.epochs, budget=seconds)


def _settings(target: TuningTarget, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tuned settings of an arm; batch size and learning rate are the trials' if they were not searched."""
    found = {name: value for name, value in settings_of(values, target.config).items() if name not in target.fixed}
    optim = target.config.optim
    fitted = {"optim.batch_size": optim.batch_size, "optim.lr": optim.lr, "optim.least_steps": None}
    return {**fitted, **frozen_augmentation(target.config), **found}


def notes_on_tuning(tuned: TunedArms) -> list[Note]:
    """Return remarks on the tuned settings: arms with their own, and values at the edge of the search range."""
    notes = []
    words = {axis.name: axis.words for axis in tuned.axes}
    for name in tuned.own:
        message = f"{name} got its own settings, which improve it more than the other arms, beyond chance"
        notes.append(Note("tuned", message, arm=name))
    ends: dict[str, list[str]] = {}
    for name, edges in tuned.edges.items():
        for setting, end in edges.items():
            ends.setdefault(f"the {end} {words[setting]} that was tried", []).append(name)
    for what, names in ends.items():
        whose = "all arms" if len(names) == len(tuned.values) else ", ".join(names)
        notes.append(
            Note(
                "edge",
                f"the best value for {whose} is {what}; a better one may lie beyond",
                "start closer to it with --lr",
            )
        )
    return notes


def promise() -> str:
    """Describe the guaranteed rate of false alarms."""
    return (
        "All arms get the settings that are best on average over the arms; an arm gets its own only if it gains more "
        "by them than the others do, by more than the scatter of its trials. So arms that are in truth equal get "
        f"different settings at most {ALARM:.0%} of the time, in addition to the 5% error rate of the intervals."
    )
