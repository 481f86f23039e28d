"""From scores of two arms to the difference between them, with an interval over trainings and images together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, Unpack

import numpy as np

from .difference import Difference, check_level
from .exact import mcnemar, sign_flip
from .folded import Folds, folded_spread
from .spread import Spread, fixed_spread, mean_squares, paired_spread, unpaired_spread

Seeds = Literal["random", "fixed"]  # "random" speaks about trainings to come, "fixed" about these very weights


class Terms(TypedDict, total=False):
    """How every difference of this file is judged and shown."""

    level: float  # confidence of the interval; 0.95 if not given
    larger_is_better: bool  # False for errors and losses; it turns the verdict, never the sign of the difference
    margin: float | None  # a difference too small to matter, for the verdict "no difference"
    share: bool | None  # whether differences are in percentage points; where all scores are 0 or 1 if not given
    unit: str  # of other differences
    folds: Folds | None  # how samples were cut, where every score is out of fold


def paired_difference(a: Any, b: Any, *, seeds: Seeds = "random", **terms: Unpack[Terms]) -> Difference:
    """Return b - a: how much the second arm scores above the first, over trainings and images together.

    Args:
        a: scores of the first arm, seeds x images: right or wrong, or any number an image.
        b: scores of the second arm, same shape: row s of both is the same seed, column p the same image.
        seeds: "random" speaks about trainings to come and needs two seeds; "fixed" speaks about these very weights.
        terms: see `Terms`: level, larger_is_better, margin, share, unit.
    """
    if seeds not in ("random", "fixed"):
        raise ValueError(f'seeds={seeds!r} was given; "random" (a sample of trainings) or "fixed" (these weights only)')
    first, second = read_scores(a, b, one_seed=_one_seed(seeds, terms))
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
    """Return b - a for arms trained with different seeds, or different numbers of them, on the same test images.

    Args:
        a: scores of the first arm, seeds x images.
        b: scores of the second arm, its own seeds x the same images.
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


def macro_difference(
    a: Any, b: Any, labels: Any, *, seeds: Seeds = "random", paired: bool = True, **terms: Unpack[Terms]
) -> Difference:
    """Return b - a of the mean over classes of the class means, such as macro-averaged accuracy.

    Args:
        a: scores of the first arm, seeds x images.
        b: scores of the second arm, same shape.
        labels: class of each image, P; every class that occurs counts the same, and needs two images.
        seeds: as for `paired_difference`.
        paired: False for arms with seeds of their own.
        terms: see `Terms`.
    """
    first, second = read_scores(a, b, one_seed=_one_seed(seeds, terms), same_seeds=paired)
    P = first.shape[1]
    classes, index, counts = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    if index.shape != (P,):
        raise ValueError(f"labels of shape {np.shape(labels)} were given for {P} samples; give one class a sample")
    if counts.min() < 2:
        few = ", ".join(str(x) for x in classes[counts < 2][:5])
        raise ValueError(f"one sample only of class {few}; a class needs 2 to see how it varies. Merge or drop it")
    binary = right_or_wrong(first, second)
    terms["share"] = binary if terms.get("share") is None else terms["share"]
    if paired:
        found = from_differences(macro_values(second - first, index, counts), seeds=seeds, **terms)
    else:
        found = unpaired_difference(*(macro_values(x, index, counts) for x in (first, second)), **terms)
    return replace(found, right_or_wrong=binary, mcnemar_p=None, mcnemar_per_seed=np.empty(0))


def macro_values(scores: np.ndarray, index: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return S, P values whose mean over images is the macro mean, and whose spread is its linearisation."""
    by_class = np.stack([np.bincount(index, weights=row) for row in scores]) / counts  # S, C
    macro = by_class.mean(1, keepdims=True)  # S, 1
    # n - 1 as for any class variance
    weight = scores.shape[1] / (len(counts) * counts) * np.sqrt(counts / (counts - 1))
    return macro + weight[index] * (scores - by_class[:, index])


def statistic_difference(
    a: Sequence[Any] | np.ndarray,
    b: Sequence[Any] | np.ndarray,
    statistic: Callable[[Any], float],
    *,
    groups: int = 100,
    seed: int = 0,
    seeds: Seeds = "random",
    paired: bool = True,
    **terms: Unpack[Terms],
) -> Difference:
    """Return b - a of any smooth statistic of per-image records, by leaving out groups of images in turn.

    Args:
        a: for each seed of the first arm the records of all images, as an array whose first dimension is images.
        b: the same for the second arm.
        statistic: maps records of some images to a number; means, ratios and F-scores are smooth, maxima are not.
        groups: how many groups of images are left out in turn; the statistic runs 2 x seeds x (groups + 1) times.
        seed: of the random grouping.
        seeds: as for `paired_difference`.
        paired: False for arms with seeds of their own.
        terms: see `Terms`.
    """
    arms = [[np.asarray(x) for x in arm] for arm in (a, b)]
    sizes = {len(x) for arm in arms for x in arm}
    least = 1 if _one_seed(seeds, terms) else 2
    if (paired and len(arms[0]) != len(arms[1])) or min(map(len, arms)) < least or len(sizes) != 1:
        raise ValueError(
            f"{len(arms[0])} and {len(arms[1])} seeds with {sorted(sizes)} samples were given; both arms need the "
            "same seeds, two at least, each with records of the same samples"
        )
    P = sizes.pop()
    if groups < 2:
        raise ValueError(f"groups={groups} was given; at least 2, about 100 is plenty")
    folds = terms.get("folds")
    if folds is None:
        groups = min(groups, P)
        group = np.random.default_rng(seed).permutation(P) % groups
    else:
        group, terms["folds"] = folds.grouped(groups, P, np.random.default_rng(seed))
        groups = int(group.max()) + 1
    pseudo = [np.stack([pseudo_values(x, statistic, group, groups) for x in arm]) for arm in arms]
    terms["share"] = bool(terms.get("share"))
    first, second = read_scores(*pseudo, one_seed=_one_seed(seeds, terms), same_seeds=paired)
    found = from_differences(second - first, seeds=seeds, **terms) if paired else unpaired_difference(*pseudo, **terms)
    return replace(found, n_samples=P, mcnemar_p=None, mcnemar_per_seed=np.empty(0))


def _one_seed(seeds: Seeds, terms: Terms) -> bool:
    """Whether a single seed is enough: of these very weights, or of folds, which are trainings of their own."""
    return seeds == "fixed" or terms.get("folds") is not None


def pseudo_values(records: np.ndarray, statistic: Callable[[Any], float], group: np.ndarray, groups: int) -> np.ndarray:
    """Return a statistic's jackknife values of groups of samples, whose mean is the statistic."""
    whole = float(statistic(records))
    without = np.array([float(statistic(records[group != g])) for g in range(groups)])
    pseudo = groups * whole - (groups - 1) * without
    return pseudo + whole - pseudo.mean()  # centred on the statistic itself, not on its bias-corrected form


def paired_scores(a: Any, b: Any, *, samples_fixed: bool = True, **terms: Unpack[Terms]) -> Difference:
    """Return b - a for one number a seed, such as mIoU, AP or ECE: a t interval over seeds.

    Only trainings are a sample here: the interval speaks about other seeds on this very test set.

    Args:
        a: scores of the first arm, S.
        b: scores of the second arm, the same seeds.
        samples_fixed: False where every seed was scored on images of its own.
        terms: see `Terms`.
    """
    first, second = read_series(a, b)
    differences = second - first
    spread = Spread(_variance_of_mean(differences), len(differences) - 1, 0.0, np.inf, 0.0)
    mean, count = float(differences.mean()), len(differences)
    found = summarize(mean, spread, n_seeds=count, n_samples=0, per_seed=differences, **terms)
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
        per_seed=np.empty(0) if per_seed is None else per_seed,
        seed_se=float(np.sqrt(spread.seed)),
        sample_se=float(np.sqrt(spread.sample)),
        sign_flip_p=None if per_seed is None else sign_flip(per_seed),
        right_or_wrong=right_or_wrong,
        spread=spread,
        share=right_or_wrong if share is None else share,
        **other,
    )


@dataclass(frozen=True)
class Ratio:
    """How many times the first's cost the second costs, b / a."""

    ratio: float  # the geometric mean of b / a; above 1 when b costs more
    low: float  # lower end of the interval
    high: float  # upper end of the interval
    p_value: float  # two-sided, that the ratio is 1; below 1 - level exactly when the interval excludes 1
    level: float  # confidence of the interval
    n_rounds: int  # how many pairs were measured


def ratio_interval(a: Any, b: Any, *, level: float = 0.95) -> Ratio:
    """Return b / a of noisy costs such as seconds a step, paired by round: a t interval of the log-ratio.

    Args:
        a: costs of the first, one a round, measured in turn with b so that both see the same machine.
        b: costs of the second, the same rounds.
        level: confidence of the interval.
    """
    check_level(level)
    first, second = read_series(a, b, what="rounds")
    if (least := min(first.min(), second.min())) <= 0:
        raise ValueError(f"costs down to {least:g} were given; a ratio needs costs above zero. Measure longer")
    logs = np.log(second / first)
    spread = Spread(_variance_of_mean(logs), len(logs) - 1, 0.0, np.inf, 0.0)
    mean, half = float(logs.mean()), float(spread.half_width(level))
    low, high = np.exp(mean - half), np.exp(mean + half)
    return Ratio(float(np.exp(mean)), float(low), float(high), spread.p_value(mean), level, len(logs))


def _variance_of_mean(values: np.ndarray) -> float:
    variance = float(values.var(ddof=1)) / len(values)
    return variance if variance > 1e-26 * float(np.square(values).mean()) else 0.0  # rounding of equal values


def right_or_wrong(*arms: np.ndarray) -> bool:
    """Return whether every score is 0 or 1."""
    return all(bool(((x == 0) | (x == 1)).all()) for x in arms)


def read_scores(a: Any, b: Any, *, one_seed: bool = False, same_seeds: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Return both arms' scores as float64, S, P, after checking them and how many seeds they have."""
    first, second = _numbers(a, "a"), _numbers(b, "b")
    for name, values in (("a", first), ("b", second)):
        if values.ndim != 2:
            raise ValueError(
                f"{name} has shape {values.shape}; give seeds x samples. One training's samples: {name}[None] with "
                'seeds="fixed". One number a seed: paired_scores'
            )
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"a has {first.shape[1]} samples, b has {second.shape[1]}; both arms must answer the same samples in the "
            "same order. Evaluate both on one test set"
        )
    if first.shape[1] < 2:
        raise ValueError(f"{first.shape[1]} samples were given; at least 2 are needed")
    if same_seeds and first.shape[0] != second.shape[0]:
        raise ValueError(
            f"a has {first.shape[0]} seeds, b has {second.shape[0]}; row s of both must come from the same seed. Run "
            "the missing seeds, or use unpaired_difference, which needs more of them"
        )
    least = 1 if one_seed else 2
    if min(first.shape[0], second.shape[0]) < least:
        raise ValueError(
            f"{min(first.shape[0], second.shape[0])} seed(s) were given; at least 2, better 5, are needed: from one "
            "training of each arm nothing can be said about other trainings. Run more seeds, or ask about these very "
            'weights only: paired_difference(a, b, seeds="fixed")'
        )
    return first, second


def read_series(a: Any, b: Any, *, what: str = "seeds") -> tuple[np.ndarray, np.ndarray]:
    """Return two flat float64 arrays of one length, after checking them."""
    first, second = _numbers(a, "a"), _numbers(b, "b")
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(
            f"a has shape {first.shape}, b has shape {second.shape}; give one number for each of the same {what}"
        )
    if len(first) < 2:
        raise ValueError(f"{len(first)} {what} were given; at least 2 are needed to see how much they vary")
    return first, second


def _numbers(values: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} is ragged; every seed needs a score for every sample") from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} holds {array.dtype}; give booleans or numbers: right or wrong, or a score a sample")
    array = array.astype(np.float64)
    bad = int(np.count_nonzero(~np.isfinite(array)))
    if bad:
        raise ValueError(
            f"{name} holds {bad} value(s) that are NaN or infinite, of {array.size}; a failed run cannot be compared: "
            "leave that seed out of both arms, or run it again"
        )
    return array
