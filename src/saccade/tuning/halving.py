"""Successive halving: many candidates for a short time, the better ones for longer, within a given time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..support.wording import count_of
from ..training.pace import Pace

ETA = 3  # of so many candidates one goes on, to train so many times as long
MOST = 27  # candidates
FEWEST = 6  # that are tried before trainings are made shorter for them
SHORTEST = 16  # part of the epochs asked for that the first rung trains for, at least, where time allows


@dataclass(frozen=True)
class Rung:
    """A round in which candidates are trained for the same length."""

    count: int  # of candidates
    epochs: int  # of each


def make_rungs(count: int, first: int, most: int) -> list[Rung]:
    """Return the rounds for so many candidates."""
    rungs, epochs = [], first
    while True:
        rungs.append(Rung(count, min(epochs, most)))
        if count <= 2 or epochs >= most:
            return rungs
        count, epochs = max(math.ceil(count / ETA), 2), epochs * ETA


def say_rungs(rungs: Sequence[Rung]) -> str:
    """Return the rounds in words."""
    return ", ".join(f"{rung.count} for {count_of(rung.epochs, 'epoch')}" for rung in rungs)


def seconds_of(rungs: Sequence[Rung], pace: Pace) -> float:
    """Return how long rounds take."""
    return sum(rung.count * pace.seconds(rung.epochs) for rung in rungs)


def plan_rungs(budget: float, pace: Pace, *, candidates: int, most: int) -> list[Rung]:
    """Return rounds that fit into the time; empty if not even two candidates fit for one epoch.

    First as many candidates as there are, each trained long enough to be judged; where time is short, fewer of them,
    then shorter ones. What is left makes all rounds longer.

    Args:
        most: epochs that the run itself has.
    """
    counts = list(range(min(candidates, MOST), 1, -1))
    enough = min(FEWEST, candidates)
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
    """Return the best candidates of a round, best first, of equal ones the earlier; those that failed never go on."""
    sound = [(number, score) for number, score in scores if score is not None]
    return [number for number, _ in sorted(sound, key=lambda one: -one[1] if larger else one[1])][:count]
