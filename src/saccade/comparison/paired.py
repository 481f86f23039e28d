"""The difference between two training arms, with an interval over trainings and pictures together."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from .anova import fixed_spread, mean_squares, paired_spread, unpaired_spread
from .decision import Verdict, decide
from .exact import mcnemar, sign_flip
from .inputs import check_level, read_scores
from .power import seeds_needed
from .spread import Spread


@dataclass(frozen=True)
class Difference:
    """How much the second arm differs from the first, b - a, and how sure that is.

    Args:
        mean: mean(b) - mean(a); positive when b scores more.
        low: lower end of the interval.
        high: upper end of the interval.
        p_value: two-sided; below 1 - level exactly when the interval excludes zero.
        detectable: estimate of the smallest true difference that such an experiment finds four times out of five.
        level: confidence of the interval.
        n_seeds: trainings of an arm, of the smaller arm if they differ.
        n_pictures: test pictures; 0 where only one number a seed is known.
        per_seed: b - a of each seed, S; empty when seeds are not paired.
        seed_se: standard error of the mean that trainings cause.
        picture_se: standard error of the mean that the choice of pictures causes beyond that.
        sign_flip_p: exact p-value over seeds, pictures as they are; None without paired seeds.
        mcnemar_p: exact p-value over pictures, trainings as they are; None without pictures.
        mcnemar_per_seed: the same for each seed alone, S; empty when seeds are not paired.
        design: "paired", "unpaired" or "fixed" (these very trainings only).
        larger_is_better: whether a higher score is the better one.
        right_or_wrong: whether all scores were 0 or 1.
        margin: a difference too small to matter, if one was told.
        spread: where the uncertainty comes from.
        share: whether scores are shares of one, so that differences are told in percentage points.
        unit: of other scores; empty for none.
    """

    mean: float
    low: float
    high: float
    p_value: float
    detectable: float
    level: float
    n_seeds: int
    n_pictures: int
    per_seed: np.ndarray = field(repr=False)
    seed_se: float
    picture_se: float
    sign_flip_p: float | None
    mcnemar_p: float | None
    mcnemar_per_seed: np.ndarray = field(repr=False)
    design: Literal["paired", "unpaired", "fixed"]
    larger_is_better: bool
    right_or_wrong: bool
    margin: float | None
    spread: Spread = field(repr=False)
    share: bool = False
    unit: str = ""

    def interval(self, level: float) -> tuple[float, float]:
        """Return the interval at another level."""
        check_level(level)
        half = float(self.spread.half_width(level))
        return self.mean - half, self.mean + half

    def power(self, difference: float) -> float:
        """Return the chance that such an experiment finds a true difference of this size."""
        return self.spread.power(difference, level=self.level)

    def seeds_needed(self, difference: float, *, power: float = 0.8) -> int | None:
        """Return how many seeds find a true difference of this size; None if these pictures are too few for it."""
        return seeds_needed(self, difference, power=power)

    @property
    def verdict(self) -> Verdict:
        """What follows, in words; for several arms use `judge`, which corrects for their number."""
        return decide(self, margin=self.margin)

    def __str__(self) -> str:
        return str(self.verdict)


def paired_difference(
    a: Any,
    b: Any,
    *,
    seeds: Literal["random", "fixed"] = "random",
    level: float = 0.95,
    larger_is_better: bool = True,
    margin: float | None = None,
    share: bool | None = None,
    unit: str = "",
) -> Difference:
    """Return b - a: how much the second arm scores above the first, over trainings and pictures together.

    Positive means that b scores more. Row s of both arms comes from the same seed, column p is the same picture.

    Args:
        a: scores of the first arm (the baseline), seeds x pictures: booleans, 0 and 1, or any score a picture.
        b: scores of the second arm (the change), same shape.
        seeds: "random" speaks about trainings to come and needs two seeds; "fixed" speaks about these very weights.
        level: confidence of the interval.
        larger_is_better: False for errors and losses; it turns the verdict, never the sign of the difference.
        margin: a difference too small to matter, for the verdict "no difference".
        share: whether differences are told in percentage points; None does so where all scores are 0 or 1.
        unit: that other differences are told in.
    """
    if seeds not in ("random", "fixed"):
        raise ValueError(f'seeds={seeds!r} was given; "random" (a sample of trainings) or "fixed" (these weights only)')
    first, second = read_scores(a, b, one_seed=seeds == "fixed")
    return from_differences(
        second - first,
        seeds=seeds,
        level=level,
        larger_is_better=larger_is_better,
        margin=margin,
        right_or_wrong=right_or_wrong(first, second),
        share=share,
        unit=unit,
    )


def from_differences(
    differences: np.ndarray,
    *,
    seeds: Literal["random", "fixed"] = "random",
    level: float = 0.95,
    larger_is_better: bool = True,
    margin: float | None = None,
    right_or_wrong: bool = False,
    share: bool | None = None,
    unit: str = "",
) -> Difference:
    """Return the result for differences b - a that were already taken, S, P."""
    S, P = differences.shape
    ms = mean_squares(differences)
    spread = (paired_spread if seeds == "random" else fixed_spread)(ms, seeds=S, pictures=P)
    per_seed = differences.mean(1)
    return summarize(
        float(ms.mean),
        spread,
        level=level,
        n_seeds=S,
        n_pictures=P,
        per_seed=per_seed,
        sign_flip_p=sign_flip(per_seed),
        mcnemar_p=mcnemar(differences),
        mcnemar_per_seed=np.array([mcnemar(row) for row in differences]),
        design="paired" if seeds == "random" else "fixed",
        larger_is_better=larger_is_better,
        right_or_wrong=right_or_wrong,
        margin=margin,
        share=share,
        unit=unit,
    )


def unpaired_difference(
    a: Any,
    b: Any,
    *,
    level: float = 0.95,
    larger_is_better: bool = True,
    margin: float | None = None,
    share: bool | None = None,
    unit: str = "",
) -> Difference:
    """Return b - a for arms trained with different seeds, or different numbers of them, on the same test pictures.

    Args:
        a: scores of the first arm, seeds x pictures.
        b: scores of the second arm, its own seeds x the same pictures.
        level: confidence of the interval.
        larger_is_better: False for errors and losses.
        margin: a difference too small to matter.
        share: whether differences are told in percentage points; None does so where all scores are 0 or 1.
        unit: that other differences are told in.
    """
    first, second = read_scores(a, b, same_seeds=False)
    spread = unpaired_spread(first, second)
    between = second.mean(0) - first.mean(0)
    return summarize(
        float(between.mean()),
        spread,
        level=level,
        n_seeds=min(len(first), len(second)),
        n_pictures=first.shape[1],
        per_seed=np.empty(0),
        sign_flip_p=None,
        mcnemar_p=mcnemar(between),
        mcnemar_per_seed=np.empty(0),
        design="unpaired",
        larger_is_better=larger_is_better,
        right_or_wrong=right_or_wrong(first, second),
        margin=margin,
        share=share,
        unit=unit,
    )


def summarize(
    mean: float,
    spread: Spread,
    *,
    level: float,
    margin: float | None,
    right_or_wrong: bool,
    share: bool | None = None,
    **known: Any,
) -> Difference:
    """Return the result that follows from a mean and its spread."""
    check_level(level)
    if margin is not None and not margin > 0:
        raise ValueError(f"margin={margin} was given; it is the largest difference that does not matter, above zero")
    spread = spread.scalar()
    mean = 0.0 if spread.certain and abs(mean) < 1e-15 else mean
    half = float(spread.half_width(level))
    low, high, alpha = mean - half, mean + half, 1 - level
    p = spread.p_value(mean)
    # Where the interval touches zero, rounding must not let the two disagree.
    p = min(p, float(np.nextafter(alpha, 0))) if low > 0 or high < 0 else max(p, alpha)
    return Difference(
        mean=mean,
        low=low,
        high=high,
        p_value=p,
        detectable=spread.estimated_detectable(level=level),
        level=level,
        margin=margin,
        seed_se=float(np.sqrt(spread.seed)),
        picture_se=float(np.sqrt(spread.picture)),
        spread=spread,
        right_or_wrong=right_or_wrong,
        share=right_or_wrong if share is None else share,
        **known,
    )


def right_or_wrong(*arms: np.ndarray) -> bool:
    """Return whether every score is 0 or 1."""
    return all(bool(((x == 0) | (x == 1)).all()) for x in arms)
