"""Successive halving: many candidates are trained briefly, the best ones longer, within a time budget."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..support.wording import count_of
from ..training.pace import Pace

ETA = 3  # reduction of candidates, and factor of training length, per rung
MAX_CANDIDATES = 27  # most candidates
MIN_CANDIDATES = 6  # least candidates before trainings are shortened
SHORTEST = 16  # the first rung trains for at least 1 / SHORTEST of the epochs, if time allows


@dataclass(frozen=True)
class Rung:
    """A round of trials of equal length."""

    count: int  # number of candidates
    epochs: int  # epochs of each


def make_rungs(count: int, first: int, most: int) -> list[Rung]:
    """Return the rungs for `count` candidates."""
    rungs, epochs = [], first
    while True:
        rungs.append(Rung(count, min(epochs, most)))
        if count <= 2 or epochs >= most:
            return rungs
        count, epochs = max(math.ceil(count / ETA), 2), epochs * ETA


def describe_rungs(rungs: Sequence[Rung]) -> str:
    """Describe the rungs."""
    return ", ".join(f"{rung.count} for {count_of(rung.epochs, 'epoch')}" for rung in rungs)


def seconds_of(rungs: Sequence[Rung], pace: Pace) -> float:
    """Return the duration of rungs."""
    return sum(rung.count * pace.seconds(rung.epochs) for rung in rungs)


def plan_rungs(budget: float, pace: Pace, *, candidates: int, most: int) -> list[Rung]:
    """Return rungs that fit into the budget; empty if not even two candidates fit for one epoch.

    The number of candidates is reduced first, then the length of trials. Remaining time makes all rungs longer.

    Args:
        most: epochs of the run itself.
    """
    counts = list(range(min(candidates, MAX_CANDIDATES), 1, -1))
    enough = min(MIN_CANDIDATES, candidates)
    shortest = max(most // SHORTEST, 1)
    lengths = sorted({max(shortest // part, 1) for part in (1, 2, 4, shortest)}, reverse=True)
    tries = [(count, first) for first in lengths for count in counts if count >= enough]
    tries += [(count, 1) for count in counts if count < enough]
    for count, first in tries:
        if seconds_of(make_rungs(count, first, most), pace) <= budget:
            while first < most and seconds_of(make_rungs(count, first + 1, most), pace) <= budget:
                first += 1
            return make_rungs(count, first, most)
    return []


def survivors(scores: Sequence[tuple[int, float | None]], count: int, *, larger: bool) -> list[int]:
    """Return the best candidates of a rung, best first, ties by order; failed ones are never included."""
    sound = [(number, score) for number, score in scores if score is not None]
    return [number for number, _ in sorted(sound, key=lambda one: -one[1] if larger else one[1])][:count]
