"""What an experiment can find: planned before any run, and from a result, how many seeds settle it."""

from typing import Protocol

import numpy as np

from .spread import Spread

MOST_SEEDS = 10_000  # a plan beyond this is no plan


class Measured(Protocol):
    """What planning needs of a result."""

    @property
    def spread(self) -> Spread:
        """Where the uncertainty comes from."""

    @property
    def n_seeds(self) -> int:
        """Trainings of an arm."""

    @property
    def level(self) -> float:
        """Confidence of the interval."""


def plan_detectable(
    seeds: int,
    pictures: int,
    accuracy: float,
    *,
    seed_sd: float = 0.005,
    disagreement: float | None = None,
    repeats: float = 0.25,
    level: float = 0.95,
    power: float = 0.8,
) -> float:
    """Return the smallest true difference of accuracy that a planned paired comparison finds with probability `power`.

    Args:
        seeds: trainings of each arm.
        pictures: test pictures.
        accuracy: the baseline's, from 0 to 1.
        seed_sd: how much the two arms' true difference varies from seed to seed; half a point is usual on small data.
        disagreement: share of pictures on which one arm is right and the other wrong; by default accuracy x (1 -
            accuracy), two networks whose answers correlate by one half.
        repeats: share of the disagreement's variance that is the same for every seed, because the arms differ on the
            picture; the rest is chance of single trainings.
        level: confidence of the interval.
        power: the wanted chance of finding it.
    """
    if seeds < 2 or pictures < 2:
        raise ValueError(f"seeds={seeds}, pictures={pictures} were given; a plan needs at least 2 of both")
    if not 0 < accuracy < 1:
        raise ValueError(f"accuracy={accuracy} was given; it is a share between 0 and 1")
    variance = accuracy * (1 - accuracy) if disagreement is None else disagreement
    if not (0 < variance <= 1 and 0 <= repeats <= 1 and seed_sd >= 0):
        raise ValueError(
            f"disagreement={disagreement}, repeats={repeats}, seed_sd={seed_sd} were given; the first two are shares, "
            "disagreement above 0, and a standard deviation is not negative"
        )
    picture = repeats * variance / pictures
    rest = (1 - repeats) * variance / (seeds * pictures)
    freedom = max(2 * pictures * variance, 1)  # of a variance that only discordant pictures tell about
    return Spread(seed_sd**2 / seeds + rest, seeds - 1, picture, freedom, picture + rest).detectable(
        level=level, power=power
    )


def seeds_needed(result: Measured, difference: float, *, level: float | None = None, power: float = 0.8) -> int | None:
    """Return how many seeds of each arm, in all, find a true difference of this size on the same pictures.

    Args:
        result: a comparison of at least two seeds, from which the spread is taken.
        difference: the size that matters; its sign does not.
        level: confidence of the interval; the result's by default.
        power: the wanted chance of finding it.

    Returns:
        The number, 2 at least, or None when no number of seeds is enough because the pictures are too few.
    """
    wanted, now = abs(difference), result.n_seeds
    if not wanted > 0:
        raise ValueError(f"difference={difference} was given; no experiment finds a difference of zero, give its size")
    if now < 2 or not np.isfinite(result.spread.seed_df):
        raise ValueError("how trainings vary is unknown from fixed trainings; compare at least 2 seeds as random first")

    level = result.level if level is None else level

    def enough(seeds: int) -> bool:
        spread = result.spread.with_seeds(seeds, now=now)
        return spread.detectable(level=level, power=power) <= wanted * result.spread.understated * (1 + 1e-9)

    high = 2
    while not enough(high):
        high *= 2
        if high > MOST_SEEDS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def pictures_needed(result: Measured, difference: float, *, pictures: int, level: float, power: float = 0.8) -> int:
    """Return about how many pictures let enough seeds find a true difference of this size, twofold reserve included."""
    limit = result.spread.with_seeds(MOST_SEEDS, now=result.n_seeds).detectable(level=level, power=power)
    return int(np.ceil(2 * pictures * (limit / abs(difference)) ** 2))
