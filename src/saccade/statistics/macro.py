"""Differences of macro averages: means over classes of class means."""

from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from .difference import Difference
from .inputs import read_scores, right_or_wrong
from .paired import Seeds, Terms, from_differences, takes_one_seed, unpaired_difference


def macro_difference(
    a: Any, b: Any, labels: Any, *, seeds: Seeds = "random", paired: bool = True, **terms: Unpack[Terms]
) -> Difference:
    """Return b - a of the mean over classes of the class means, such as macro-averaged accuracy.

    Args:
        a: scores of the first arm, seeds x samples.
        b: scores of the second arm, same shape.
        labels: class of each sample, P; every class that occurs counts the same, and needs two samples.
        seeds: as for `paired_difference`.
        paired: False for arms with seeds of their own.
        terms: see `Terms`.
    """
    first, second = read_scores(a, b, one_seed=takes_one_seed(seeds, terms), same_seeds=paired)
    P = first.shape[1]
    classes, index, counts = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    if index.shape != (P,):
        raise ValueError(f"labels of shape {np.shape(labels)} were given for {P} samples; give one class per sample")
    if counts.min() < 2:
        few = ", ".join(str(x) for x in classes[counts < 2][:5])
        raise ValueError(
            f"only one sample has the class {few}; a class needs at least 2 to measure its variance. Merge or drop "
            "the class"
        )
    binary = right_or_wrong(first, second)
    terms["share"] = binary if terms.get("share") is None else terms["share"]
    if paired:
        found = from_differences(macro_values(second - first, index, counts), seeds=seeds, **terms)
    else:
        found = unpaired_difference(*(macro_values(x, index, counts) for x in (first, second)), **terms)
    return replace(found, right_or_wrong=binary, mcnemar_p=None, mcnemar_per_seed=np.empty(0))


def macro_values(scores: np.ndarray, index: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return S, P values whose mean over samples is the macro mean, and whose spread is its linearisation."""
    by_class = np.stack([np.bincount(index, weights=row) for row in scores]) / counts  # S, C
    macro = by_class.mean(1, keepdims=True)  # S, 1
    # n - 1 as for any class variance
    weight = scores.shape[1] / (len(counts) * counts) * np.sqrt(counts / (counts - 1))
    return macro + weight[index] * (scores - by_class[:, index])
