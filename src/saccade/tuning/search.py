"""Run a search: the same candidates and training lengths for every arm, until the time is over."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..settings import TrainConfig, overlay
from ..support.durations import BudgetError, say_duration
from ..support.wording import count_of
from ..tasks.metric import MetricSpec
from ..training.pace import Pace
from ..training.trial import SEED, OutOfTime, Trial, TrialSetup
from .halving import MAX_CANDIDATES, Rung, plan_rungs, survivors
from .space import Axis, Values, candidates, settings_of
from .store import Store

LOOKS = 4  # validations in a trial


@dataclass(frozen=True)
class TuningTarget:
    """A model and dataset to tune."""

    name: str  # name of the arm
    config: TrainConfig  # resolved for the whole dataset
    ground: TrialSetup  # parts of the training samples
    fixed: tuple[str, ...] = ()  # the arm's own settings, which candidates do not change

    def trial_config(self, values: Values, epochs: int) -> TrainConfig:
        """Return the settings of a trial."""
        tried = {name: value for name, value in settings_of(values, self.config).items() if name not in self.fixed}
        own: dict[str, Any] = {
            "seed": SEED,
            "engine.compile": False,  # trials are too short for compilation to pay off
            "schedule.epochs": epochs,
            "schedule.patience": None,
            "keep.evaluate_every": max(epochs // LOOKS, 1),
        }
        return overlay(self.config, {**tried, **own})


@dataclass(frozen=True)
class Attempt:
    """A finished trial of a candidate."""

    arm: str  # arm of the trial
    number: int  # number of the candidate
    values: dict[str, Any]  # the candidate's value for each axis
    rung: int  # rung, counted from 0
    epochs: int  # epochs trained
    trial: Trial  # result


def run_search(
    targets: Sequence[TuningTarget],
    chosen: Sequence[Values],
    rungs: Sequence[Rung],
    store: Store,
    *,
    device: torch.device,
    until: float | None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Attempt]:
    """Run trials rung by rung; finished ones are not repeated.

    Args:
        targets: the arms, which all get the same trials.
        chosen: the candidates; the first rung takes as many as fit.
        until: deadline, by `time.monotonic`.
    """
    attempts: list[Attempt] = []
    going = list(range(min(len(chosen), rungs[0].count)))
    larger = targets[0].ground.metric.larger_is_better
    for place, rung in enumerate(rungs):
        for number in going:
            values, found = dict(chosen[number]), []
            try:
                for target in targets:
                    config = target.trial_config(values, rung.epochs)
                    about = {"arm": target.name, "values": values, "epochs": rung.epochs}
                    least = _expected(store, rung.epochs)
                    found.append(store.trial(config, target.ground, about, device=device, until=until, least=least))
            except OutOfTime:
                say(f"time budget used up in round {place + 1} of {len(rungs)}")
                return attempts
            for target, trial in zip(targets, found, strict=True):
                attempts.append(Attempt(target.name, number, values, place, rung.epochs, trial))
                say(_line(attempts[-1], target.ground.metric, of=len(targets)))
        if place + 1 < len(rungs):
            going = _next_candidates(attempts, targets, place, rungs[place + 1].count, larger=larger)
        if not going:
            break
    return attempts


def _next_candidates(
    attempts: Sequence[Attempt], targets: Sequence[TuningTarget], rung: int, count: int, *, larger: bool
) -> list[int]:
    """Return the candidates of the next rung, the same for all arms: the best of each arm in turn."""
    ranked = []
    for target in targets:
        scores = [(one.number, one.trial.score) for one in attempts if one.rung == rung and one.arm == target.name]
        ranked.append(survivors(scores, len(scores), larger=larger))
    in_turn = [order[place] for place in range(max(map(len, ranked))) for order in ranked if place < len(order)]
    return list(dict.fromkeys(in_turn))[:count]


def _expected(store: Store, epochs: int) -> float:
    """Estimate the least duration of a trial from finished ones."""
    paces = [one.seconds / len(one.losses) for one in store.trials.values() if one.losses and not one.failed]
    return 0.8 * min(paces) * epochs if paces else 0.0


def _line(attempt: Attempt, metric: MetricSpec, *, of: int) -> str:
    values = ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in attempt.values.items()
    )
    shown = f"failed: {attempt.trial.failed}" if attempt.trial.score is None else metric.show(attempt.trial.score)
    arm = f"{attempt.arm}: " if of > 1 else ""
    return f"round {attempt.rung + 1}, {count_of(attempt.epochs, 'epoch')}, {arm}{values}: {shown}"


def fit_rungs(axes: Sequence[Axis], left: float, pace: Pace, *, most: int, budget: float) -> list[Rung]:
    """Return the rungs that fit into the remaining time; refuse a time that is too short."""
    rungs = plan_rungs(left, pace, candidates=len(candidates(axes, MAX_CANDIDATES)), most=most)
    if not rungs:
        raise BudgetError(
            f"a budget of {say_duration(budget)} was given, but {say_duration(max(left, 0.0))} of it are left after "
            "the start, and two candidates for one epoch take about "
            f"{say_duration(2 * pace.seconds(1) + pace.took)}; give more time, or fewer samples (--set "
            "data.train_limit=N)"
        )
    return rungs


def best_of(attempts: Sequence[Attempt], arm: str, *, larger: bool) -> Attempt | None:
    """Return an arm's best candidate in the last rung with a comparison; None if no trial finished.

    A rung with a single finished trial compares nothing, but continues the best of the rung before.
    """
    sound = [one for one in attempts if one.arm == arm and one.trial.score is not None]
    if not sound:
        return None
    last = max(one.rung for one in sound)
    final = [one for one in sound if one.rung == last]
    return max(final, key=lambda one: (one.trial.score or 0.0) * (1 if larger else -1))


def edges_of(axes: Sequence[Axis], attempts: Sequence[Attempt], values: Values) -> dict[str, str]:
    """Return which of a candidate's values are the lowest or highest of their range, by setting."""
    found = {}
    for axis in axes:
        ended = [one.values[axis.name] for one in attempts if one.trial.score is not None]
        tried = replace(axis, values=tuple(value for value in axis.values if value in ended))
        if edge := tried.edge(values[axis.name]):
            found[axis.name] = edge
    return found
