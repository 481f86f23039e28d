"""How long a comparison takes, and how many seeds and epochs fit into a given time."""

import heapq
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEAST_SEEDS = 3  # seeds are given up down to this number before epochs are
FLOOR = 0.25  # share of the epochs asked that three seeds are to have at least
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
RULE = (
    f"seeds are reduced first, to {LEAST_SEEDS} at least; then epochs, to a quarter of those asked at least; then 2 "
    "seeds with the epochs that fit"
)


class BudgetError(ValueError):
    """A time that cannot be read, or in which nothing can be compared."""


@dataclass(frozen=True)
class Pace:
    """How long a run of an arm takes, in seconds.

    Attributes:
        startup: before the first step and after the last one.
        step: of training.
        validation: all validation pictures once.
        steps: of an epoch.
        every: epochs between validations.
        how: where the numbers come from.
    """

    startup: float
    step: float
    validation: float
    steps: int
    every: int = 1
    how: str = ""

    def seconds(self, epochs: int) -> float:
        """Return how long a run takes; it validates once more at its end."""
        validations = epochs // self.every + (epochs % self.every > 0) + 1
        return self.startup + epochs * self.steps * self.step + validations * self.validation


@dataclass(frozen=True)
class Fit:
    """What fits into the time.

    Attributes:
        seeds: how many.
        epochs: of each arm.
        seconds: it is expected to take.
        detail: what was reduced, in words; empty if nothing was.
    """

    seeds: int
    epochs: Mapping[str, int]
    seconds: float
    detail: str = ""


def parse_duration(text: str | float) -> float:
    """Return seconds from "90s", "30m", "1h30m", "2.5h" or a number of seconds."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        seconds = float(text)
    else:
        found = re.findall(r"(\d+(?:\.\d+)?)\s*([smhd])", str(text).lower())
        if not found or re.sub(r"(\d+(?:\.\d+)?)\s*[smhd]|\s", "", str(text).lower()):
            raise BudgetError(f"budget={text!r} was given; write it as 90s, 30m, 2h or 1h30m")
        seconds = sum(float(number) * UNITS[unit] for number, unit in found)
    if not seconds > 0:
        raise BudgetError(f"budget={text!r} was given; nothing can be trained in no time")
    return seconds


def say_duration(seconds: float) -> str:
    """Return seconds in words that are short."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def makespan(seconds: Sequence[float], slots: int) -> float:
    """Return how long jobs take that are begun in turn wherever one has ended."""
    free = [0.0] * slots
    for length in seconds:
        heapq.heappush(free, heapq.heappop(free) + length)
    return max(free)


def fit_budget(
    budget: float, paces: Mapping[str, Pace], epochs: Mapping[str, int], *, seeds: int, slots: int = 1
) -> Fit:
    """Choose seeds and epochs that fit into the time, by the rule of this file.

    Args:
        budget: seconds.
        paces: of each arm that is run.
        epochs: asked, of each arm; all are reduced in proportion.
        seeds: asked.
        slots: runs side by side.
    """
    longest = max(epochs.values())

    def fit(count: int, most: int) -> Fit:
        own = {arm: max(asked * most // longest, 1) for arm, asked in epochs.items()}
        return Fit(count, own, makespan([paces[arm].seconds(own[arm]) for _ in range(count) for arm in own], slots))

    def say(found: Fit) -> Fit:
        parts = [] if found.seeds == seeds else [f"{found.seeds} seeds instead of {seeds}"]
        most = max(found.epochs.values())
        parts += [] if most == longest else [f"{most} epochs instead of {longest}"]
        return Fit(found.seeds, found.epochs, found.seconds, " and ".join(parts))

    least = min(LEAST_SEEDS, seeds)
    floor = max(round(FLOOR * longest), 1)
    tries = [(count, longest) for count in range(seeds, least - 1, -1)]
    tries += [(least, most) for most in range(longest - 1, floor - 1, -1)]
    tries += [(min(2, seeds), most) for most in range(longest, 0, -1)]
    for count, most in tries:
        found = fit(count, most)
        if found.seconds <= budget:
            return say(found)
    smallest = fit(min(2, seeds), 1)
    raise BudgetError(
        f"a budget of {say_duration(budget)} was given; even {smallest.seeds} seeds of {len(paces)} arms for 1 epoch "
        f"take about {say_duration(smallest.seconds)}. Give that much, fewer arms, or fewer pictures (data.train_limit)"
    )
