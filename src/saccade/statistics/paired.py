"""The difference between two arms' scores, with an interval over seeds and samples together."""

from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack

import numpy as np

from .difference import Difference
from .exact import mcnemar, sign_flip
from .folds import Folds, folded_spread
from .inputs import check_level, read_scores, read_series, right_or_wrong
from .spread import Spread, fixed_spread, mean_squares, paired_spread, series_spread, unpaired_spread

Seeds = Literal["random", "fixed"]  # "random" speaks about other seeds, too, "fixed" about these trained weights only


class Terms(TypedDict, total=False):
    """How a difference is judged and shown."""

    level: float  # confidence of the interval; 0.95 if not given
    larger_is_better: bool  # False for errors and losses; it turns the verdict, never the sign of the difference
    margin: float | None  # a difference too small to matter, for the verdict "no difference"
    share: bool | None  # whether differences are in percentage points; where all scores are 0 or 1 if not given
    unit: str  # of other differences
    folds: Folds | None  # how samples were cut, where every score is out of fold


def paired_difference(a: Any, b: Any, *, seeds: Seeds = "random", **terms: Unpack[Terms]) -> Difference:
    """Return b - a: how much the second arm scores above the first, over seeds and samples together.

    Args:
        a: scores of the first arm, seeds x samples: right or wrong, or any number a sample.
        b: scores of the second arm, same shape: row s of both is the same seed, column p the same sample.
        seeds: "random" speaks about other seeds, too, and needs two; "fixed" about these trained weights only.
        terms: see `Terms`: level, larger_is_better, margin, share, unit, folds.
    """
    if seeds not in ("random", "fixed"):
        raise ValueError(
            f'seeds={seeds!r} was given; it must be "random" (a sample of trainings) or "fixed" (these weights only)'
        )
    first, second = read_scores(a, b, one_seed=takes_one_seed(seeds, terms))
    return from_differences(second - first, seeds=seeds, right_or_wrong=right_or_wrong(first, second), **terms)


def from_differences(
    differences: np.ndarray, *, seeds: Seeds = "random", right_or_wrong: bool = False, **terms: Unpack[Terms]
) -> Difference:
    """Return the result for differences b - a that were already taken, S, P."""
    S, P = differences.shape
    ms, folds = mean_squares(differences), terms.pop("folds", None)
    spread = (paired_spread if seeds == "random" else fixed_spread)(ms, seeds=S, samples=P)
    if folds is not None and seeds == "random":
        spread = folded_spread(differences, folds)
    return summarize(
        float(ms.mean),
        spread,
        n_seeds=S,
        n_samples=P,
        per_seed=differences.mean(1),
        mcnemar_p=mcnemar(differences),
        mcnemar_per_seed=np.array([mcnemar(row) for row in differences]),
        design="paired" if seeds == "random" else "fixed",
        right_or_wrong=right_or_wrong,
        **terms,
    )


def unpaired_difference(a: Any, b: Any, **terms: Unpack[Terms]) -> Difference:
    """Return b - a for arms trained with different seeds, or different numbers of them, on the same samples.

    Args:
        a: scores of the first arm, seeds x samples.
        b: scores of the second arm, its own seeds x the same samples.
        terms: see `Terms`.
    """
    first, second = read_scores(a, b, same_seeds=False)
    between = second.mean(0) - first.mean(0)
    return summarize(
        float(between.mean()),
        unpaired_spread(first, second),
        n_seeds=min(len(first), len(second)),
        n_samples=first.shape[1],
        mcnemar_p=mcnemar(between),
        design="unpaired",
        right_or_wrong=right_or_wrong(first, second),
        **terms,
    )


def paired_scores(a: Any, b: Any, *, samples_fixed: bool = True, **terms: Unpack[Terms]) -> Difference:
    """Return b - a for one number a seed, such as mIoU, AP or ECE: a t interval over seeds.

    The interval speaks about other seeds on these very samples, and about other samples not at all.

    Args:
        a: scores of the first arm, S.
        b: scores of the second arm, the same seeds.
        samples_fixed: False where every seed was scored on samples of its own.
        terms: see `Terms`.
    """
    first, second = read_series(a, b)
    differences = second - first
    mean, count = float(differences.mean()), len(differences)
    found = summarize(mean, series_spread(differences), n_seeds=count, n_samples=0, per_seed=differences, **terms)
    return replace(found, samples_fixed=samples_fixed)


def summarize(
    mean: float,
    spread: Spread,
    *,
    level: float = 0.95,
    margin: float | None = None,
    share: bool | None = None,
    folds: Folds | None = None,  # noqa: ARG001, of a number a seed, whose spread they are no part of
    per_seed: np.ndarray | None = None,
    right_or_wrong: bool = False,
    **other: Any,
) -> Difference:
    """Return the result that follows from a mean and its spread; `other` is what it has besides."""
    check_level(level)
    if margin is not None and not margin > 0:
        raise ValueError(
            f"margin={margin} was given; it must be above zero: the largest difference that does not matter"
        )
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
        per_seed=np.empty(0) if per_seed is None else per_seed,
        seed_se=float(np.sqrt(spread.seed)),
        sample_se=float(np.sqrt(spread.sample)),
        sign_flip_p=None if per_seed is None else sign_flip(per_seed),
        right_or_wrong=right_or_wrong,
        spread=spread,
        share=right_or_wrong if share is None else share,
        **other,
    )


def takes_one_seed(seeds: Seeds, terms: Terms) -> bool:
    """Whether a single seed is enough: for fixed seeds, or over folds, each of which is a training of its own."""
    return seeds == "fixed" or terms.get("folds") is not None
