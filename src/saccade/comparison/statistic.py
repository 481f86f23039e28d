"""Differences of statistics that are no plain mean over samples, by pseudo-values that behave like one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from .inputs import read_scores
from .paired import Difference, from_differences, right_or_wrong, unpaired_difference


def macro_difference(
    a: Any,
    b: Any,
    labels: Any,
    *,
    seeds: Literal["random", "fixed"] = "random",
    paired: bool = True,
    level: float = 0.95,
    larger_is_better: bool = True,
    margin: float | None = None,
    share: bool | None = None,
    unit: str = "",
) -> Difference:
    """Return b - a of the mean over classes of the class means, such as macro-averaged accuracy.

    Args:
        a: scores of the first arm, seeds x pictures.
        b: scores of the second arm, same shape.
        labels: class of each picture, P; every class that occurs counts the same, and needs two pictures.
        seeds: "random" speaks about trainings to come, "fixed" about these very weights.
        paired: False for arms with seeds of their own.
        level: confidence of the interval.
        larger_is_better: False for errors.
        margin: a difference too small to matter.
        share: whether differences are told in percentage points; None does so where all scores are 0 or 1.
        unit: that other differences are told in.
    """
    first, second = read_scores(a, b, one_seed=seeds == "fixed", same_seeds=paired)
    P = first.shape[1]
    classes, index, counts = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    if index.shape != (P,):
        raise ValueError(f"labels of shape {np.shape(labels)} were given for {P} pictures; give one class a picture")
    if counts.min() < 2:
        few = ", ".join(str(x) for x in classes[counts < 2][:5])
        raise ValueError(f"one picture only of class {few}; a class needs 2 to see how it varies. Merge or drop it")
    binary = right_or_wrong(first, second)
    told: dict[str, Any] = {"level": level, "larger_is_better": larger_is_better, "margin": margin, "unit": unit}
    told["share"] = binary if share is None else share
    if paired:
        pseudo = _macro_values(second - first, index, counts)
        result = from_differences(pseudo, seeds=seeds, right_or_wrong=binary, **told)
    else:
        result = unpaired_difference(*(_macro_values(x, index, counts) for x in (first, second)), **told)
    return replace(result, right_or_wrong=binary, mcnemar_p=None, mcnemar_per_seed=np.empty(0))


def _macro_values(scores: np.ndarray, index: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return S, P values whose mean over pictures is the macro mean, and whose spread is its linearisation."""
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
    seeds: Literal["random", "fixed"] = "random",
    paired: bool = True,
    level: float = 0.95,
    larger_is_better: bool = True,
    margin: float | None = None,
    share: bool = False,
    unit: str = "",
) -> Difference:
    """Return b - a of any smooth statistic of per-picture records, by leaving out groups of pictures in turn.

    Args:
        a: for each seed of the first arm the records of all pictures, as an array whose first dimension is pictures.
        b: the same for the second arm.
        statistic: maps records of some pictures to a number; means, ratios and F-scores are smooth, maxima are not.
        groups: how many groups of pictures are left out in turn; the statistic runs 2 x seeds x (groups + 1) times.
        seed: of the random grouping.
        seeds: "random" speaks about trainings to come, "fixed" about these very weights.
        paired: False for arms with seeds of their own.
        level: confidence of the interval.
        larger_is_better: False for errors.
        margin: a difference too small to matter.
        share: whether differences are told in percentage points.
        unit: that other differences are told in.
    """
    arms = [[np.asarray(x) for x in arm] for arm in (a, b)]
    sizes = {len(x) for arm in arms for x in arm}
    least = 1 if seeds == "fixed" else 2
    if (paired and len(arms[0]) != len(arms[1])) or min(map(len, arms)) < least or len(sizes) != 1:
        raise ValueError(
            f"{len(arms[0])} and {len(arms[1])} seeds with {sorted(sizes)} pictures were given; both arms need the "
            "same seeds, two at least, each with records of the same pictures"
        )
    P = sizes.pop()
    if groups < 2:
        raise ValueError(f"groups={groups} was given; at least 2, about 100 is plenty")
    groups = min(groups, P)
    group = np.random.default_rng(seed).permutation(P) % groups
    pseudo = [np.stack([_pseudo_values(x, statistic, group, groups) for x in arm]) for arm in arms]
    told: dict[str, Any] = {"level": level, "larger_is_better": larger_is_better, "margin": margin}
    told |= {"share": share, "unit": unit}
    first, second = read_scores(*pseudo, one_seed=seeds == "fixed", same_seeds=paired)
    result = from_differences(second - first, seeds=seeds, **told) if paired else unpaired_difference(*pseudo, **told)
    return replace(result, n_pictures=P, mcnemar_p=None, mcnemar_per_seed=np.empty(0))


def _pseudo_values(
    records: np.ndarray, statistic: Callable[[Any], float], group: np.ndarray, groups: int
) -> np.ndarray:
    whole = float(statistic(records))
    without = np.array([float(statistic(records[group != g])) for g in range(groups)])
    pseudo = groups * whole - (groups - 1) * without
    return pseudo + whole - pseudo.mean()  # centred on the statistic itself, not on its bias-corrected form
