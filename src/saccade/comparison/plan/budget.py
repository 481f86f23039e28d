"""How long a comparison takes, and how many seeds and epochs fit into a given time."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...support.durations import BudgetError, say_duration
from ...support.wording import count_of
from ...training.pace import Pace

LEAST_SEEDS = 3  # seeds are given up down to this number before epochs are
FLOOR = 0.25  # share of the epochs asked that three seeds are to have at least
RULE = (
    f"seeds are reduced first, to {LEAST_SEEDS} at least; then epochs, to a quarter of those asked at least; then 2 "
    "seeds with the epochs that fit"
)


@dataclass(frozen=True)
class Fit:
    """What fits into the time."""

    seeds: int  # how many
    epochs: Mapping[str, int]  # of each arm
    seconds: float  # it is expected to take
    detail: str = ""  # what was reduced, in words; empty if nothing was


def makespan(seconds: Sequence[float], slots: int) -> float:
    """Return how long jobs take that are begun in turn wherever one has ended."""
    free = [0.0] * slots
    for length in seconds:
        heapq.heappush(free, heapq.heappop(free) + length)
    return max(free)


def fit_budget(
    budget: float,
    paces: Mapping[str, Pace],
    epochs: Mapping[str, int],
    *,
    seeds: int,
    slots: int = 1,
    spent: float = 0.0,
) -> Fit:
    """Choose seeds and epochs that fit into the time, by the rule of this file.

    Args:
        epochs: asked, of each arm; all are reduced in proportion.
        spent: seconds of the budget that go by before the first training and after the last.
    """
    longest = max(epochs.values())

    def fit(count: int, most: int) -> Fit:
        own = {arm: max(asked * most // longest, 1) for arm, asked in epochs.items()}
        return Fit(count, own, makespan([paces[arm].seconds(own[arm]) for _ in range(count) for arm in own], slots))

    def say(found: Fit) -> Fit:
        parts = [] if found.seeds == seeds else [f"{count_of(found.seeds, 'seed')} instead of {seeds}"]
        most = max(found.epochs.values())
        parts += [] if most == longest else [f"{count_of(most, 'epoch')} instead of {longest}"]
        return Fit(found.seeds, found.epochs, found.seconds, " and ".join(parts))

    least = min(LEAST_SEEDS, seeds)
    floor = max(round(FLOOR * longest), 1)
    tries = [(count, longest) for count in range(seeds, least - 1, -1)]
    tries += [(least, most) for most in range(longest - 1, floor - 1, -1)]
    tries += [(min(2, seeds), most) for most in range(longest, 0, -1)]
    for count, most in tries:
        found = fit(count, most)
        if found.seconds <= budget - spent:
            return say(found)
    smallest = fit(min(2, seeds), 1)
    least_of_all = f"{count_of(smallest.seeds, 'seed')} of {count_of(len(paces), 'arm')} for 1 epoch"
    gone = f", of which {say_duration(spent)} are overhead" if spent else ""
    raise BudgetError(
        f"a budget of {say_duration(budget)} was given{gone}, but even {least_of_all} take about "
        f"{say_duration(smallest.seconds)}. Give {say_duration(smallest.seconds + spent)}, fewer arms, a smaller "
        "--model or --img-size, or fewer samples (--set data.train_limit=N)"
    )
