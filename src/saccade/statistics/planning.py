"""Experiment planning: detectable differences, and required numbers of seeds and samples."""

import numpy as np

from .spread import Spread

MANY_SEEDS = 100  # nobody runs more to confirm what was seen
MOST_SEEDS = 10_000  # a plan beyond this is no plan


def plan_detectable(
    seeds: int,
    samples: int,
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
        seeds: of each arm.
        samples: of the test set.
        accuracy: the baseline's, from 0 to 1.
        seed_sd: how much the two arms' true difference varies from seed to seed; half a point is usual on small data.
        disagreement: share of samples on which one arm is right and the other wrong; by default accuracy x (1 -
            accuracy), two networks whose answers correlate by one half.
        repeats: share of the disagreement's variance that is the same for every seed, because the arms differ on
            the sample; the rest is the chance of single seeds.
        level: confidence of the interval.
        power: the wanted chance of finding it.
    """
    if seeds < 2 or samples < 2:
        raise ValueError(f"seeds={seeds}, samples={samples} were given; a plan needs at least 2 of both")
    if not 0 < accuracy < 1:
        raise ValueError(f"accuracy={accuracy} was given; it must be between 0 and 1")
    variance = accuracy * (1 - accuracy) if disagreement is None else disagreement
    if not (0 < variance <= 1 and 0 <= repeats <= 1 and seed_sd >= 0):
        raise ValueError(
            f"disagreement={disagreement}, repeats={repeats}, seed_sd={seed_sd} were given; the first two must be "
            "fractions, disagreement above 0, and the standard deviation must not be negative"
        )
    sample = repeats * variance / samples
    rest = (1 - repeats) * variance / (seeds * samples)
    freedom = max(2 * samples * variance, 1)  # of a variance that only discordant samples tell about
    spread = Spread(seed_sd**2 / seeds + rest, seeds - 1, sample, freedom, sample + rest)
    return spread.detectable(level=level, power=power)


def seeds_needed(spread: Spread, difference: float, *, now: int, level: float, power: float = 0.8) -> int | None:
    """Return the total number of seeds per arm to detect a true difference of this size on the same samples.

    Args:
        spread: of the mean difference, as estimated.
        difference: the size that matters; its sign does not.
        now: seeds that the spread was estimated with.
        level: confidence of the interval.
        power: the wanted chance of finding it.

    Returns:
        The number, 2 at least, or None when no number of seeds is enough because the samples are too few.
    """
    wanted = abs(difference)
    if not wanted > 0:
        raise ValueError(
            f"difference={difference} was given; no experiment detects a difference of zero: give its size"
        )
    if now < 2 or not np.isfinite(spread.seed_df):
        raise ValueError("fixed trainings do not show how trainings vary; first compare at least 2 seeds as random")

    def enough(seeds: int) -> bool:
        more = spread.with_seeds(seeds, now=now)
        return more.detectable(level=level, power=power) <= wanted * spread.understated * (1 + 1e-9)

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


def samples_needed(spread: Spread, difference: float, *, seeds: int, samples: int, level: float) -> int:
    """Return the approximate number of samples to detect a difference of this size, with a twofold reserve.

    Args:
        seeds: that the spread was estimated with.
        samples: likewise.
    """
    limit = spread.with_seeds(MOST_SEEDS, now=seeds).detectable(level=level)
    return int(np.ceil(2 * samples * (limit / abs(difference)) ** 2))


def out_of_reach(more: int, margin: float | None) -> bool:
    """Whether too many more seeds are needed to confirm the observed difference, unless a margin is given."""
    return margin is None and more > MANY_SEEDS
