"""Estimate the duration of a comparison, and the seeds and epochs that fit a time budget."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...support.durations import BudgetError, say_duration
from ...support.wording import count_of
from ...training.machine import ENOUGH
from ...training.pace import Pace

LEAST_SEEDS, USUAL_SEEDS, CHOSEN_SEEDS = 3, 5, 10  # where none are named; without a budget it is the usual number
FLOOR = 0.25  # share of the epochs planned that a seed keeps where runs turn out slower, while others can be left out
RULE = (
    f"{USUAL_SEEDS} seeds, up to {CHOSEN_SEEDS} if all epochs fit, down to {LEAST_SEEDS} if fewer than {ENOUGH} "
    "epochs would fit; then fewer epochs; a given list or number of seeds is kept"
)


@dataclass(frozen=True)
class BudgetRequest:
    """The budget and the requested runs."""

    budget: float  # seconds
    seeds: int  # at most
    named: bool  # they are all wanted
    slots: int = 1  # runs at a time
    folds: int = 1  # runs of an arm and seed
    reserve: float = 1.0  # times the time that was measured, for other programs' load


@dataclass(frozen=True)
class BudgetFit:
    """The seeds and epochs that fit the budget."""

    seeds: int  # how many
    epochs: Mapping[str, int]  # of each arm
    seconds: float  # it is expected to take
    detail: str  # it in words

    @property
    def most(self) -> int:
        """Epochs of the longest arm."""
        return max(self.epochs.values())

    def is_all(self, asked: BudgetRequest, longest: int) -> bool:
        """Whether nothing had to be reduced."""
        return self.most == longest and self.seeds >= (asked.seeds if asked.named else USUAL_SEEDS)


def makespan(seconds: Sequence[float], slots: int) -> float:
    """Return the duration of jobs that start in order, each on the first free slot."""
    free = [0.0] * slots
    for length in seconds:
        heapq.heappush(free, heapq.heappop(free) + length)
    return max(free)


def fit_budget(
    asked: BudgetRequest, paces: Mapping[str, Pace], epochs: Mapping[str, int], *, spent: float = 0.0
) -> BudgetFit:
    """Choose seeds and epochs that fit the budget, by the rule in `RULE`.

    Args:
        epochs: asked, of each arm; all are reduced in proportion.
        spent: seconds of the budget that go by before the first training and after the last.
    """
    longest = max(epochs.values())
    least = asked.seeds if asked.named else min(LEAST_SEEDS, asked.seeds)

    def fit(count: int, most: int) -> BudgetFit:
        own = {arm: max(wanted * most // longest, 1) for arm, wanted in epochs.items()}
        seconds = [paces[arm].seconds(own[arm]) for _ in range(count * asked.folds) for arm in own]
        return BudgetFit(
            count, own, makespan(seconds, asked.slots), f"{count_of(count, 'seed')} of {count_of(most, 'epoch')}"
        )

    for count in range(asked.seeds, least - 1, -1):
        floor = 1 if count == least else longest if count > USUAL_SEEDS else min(ENOUGH, longest)
        for most in range(longest, floor - 1, -1):
            found = fit(count, most)
            if asked.reserve * found.seconds <= asked.budget - spent:
                return found
    smallest, usual = fit(least, 1), fit(least, min(ENOUGH, longest))
    overhead = f", of which {say_duration(spent)} are overhead" if spent else ""
    needed = [asked.reserve * one.seconds + spent for one in (smallest, usual)]
    more = f" ({say_duration(needed[1])} for {usual.most} epochs)" if usual.most > 1 else ""
    fewer = "fewer seeds, " if asked.named and least > LEAST_SEEDS else ""
    raise BudgetError(
        f"the budget is {say_duration(asked.budget)}{overhead}, but even {count_of(least, 'seed')} of "
        f"{count_of(len(paces), 'arm')} for 1 epoch take about {say_duration(smallest.seconds)}. Allow "
        f"{say_duration(needed[0])}{more}, or use {fewer}fewer arms, a smaller --model or --img-size, or fewer "
        "samples (--set data.train_limit=N)"
    )
