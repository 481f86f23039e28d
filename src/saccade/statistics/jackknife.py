"""Jackknife for statistics that are not means of sample scores (mIoU, mAP, F1)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from .difference import Difference
from .inputs import read_scores
from .paired import Seeds, Terms, from_differences, takes_one_seed, unpaired_difference


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
    """Return b - a of a smooth statistic of per-sample records, by the grouped jackknife.

    Args:
        a: for each seed of the first arm the records of all samples, as an array whose first dimension is samples.
        b: the same for the second arm.
        statistic: maps records of some samples to a number; means, ratios and F-scores are smooth, maxima are not.
        groups: how many groups of samples are left out in turn; the statistic runs 2 x seeds x (groups + 1) times.
        seed: of the random grouping.
        seeds: as for `paired_difference`.
        paired: False for arms with seeds of their own.
        terms: see `Terms`.
    """
    arms = [[np.asarray(x) for x in arm] for arm in (a, b)]
    sizes = {len(x) for arm in arms for x in arm}
    least = 1 if takes_one_seed(seeds, terms) else 2
    if (paired and len(arms[0]) != len(arms[1])) or min(map(len, arms)) < least or len(sizes) != 1:
        raise ValueError(
            f"{len(arms[0])} and {len(arms[1])} seeds with {sorted(sizes)} samples were given; both arms need the "
            "same seeds, at least two, each with records of the same samples"
        )
    P = sizes.pop()
    if groups < 2:
        raise ValueError(f"groups={groups} was given; it must be at least 2, and about 100 is enough")
    folds = terms.get("folds")
    if folds is None:
        groups = min(groups, P)
        group = np.random.default_rng(seed).permutation(P) % groups
    else:
        group, terms["folds"] = folds.grouped(groups, P, np.random.default_rng(seed))
        groups = int(group.max()) + 1
    pseudo = [np.stack([pseudo_values(x, statistic, group, groups) for x in arm]) for arm in arms]
    terms["share"] = bool(terms.get("share"))
    first, second = read_scores(*pseudo, one_seed=takes_one_seed(seeds, terms), same_seeds=paired)
    found = from_differences(second - first, seeds=seeds, **terms) if paired else unpaired_difference(*pseudo, **terms)
    return replace(found, n_samples=P, mcnemar_p=None, mcnemar_per_seed=np.empty(0))


def pseudo_values(records: np.ndarray, statistic: Callable[[Any], float], group: np.ndarray, groups: int) -> np.ndarray:
    """Return a statistic's jackknife pseudo-values by group, whose mean is the statistic."""
    whole = float(statistic(records))
    without = np.array([float(statistic(records[group != g])) for g in range(groups)])
    pseudo = groups * whole - (groups - 1) * without
    return pseudo + whole - pseudo.mean()  # centred on the statistic itself, not on its bias-corrected form
