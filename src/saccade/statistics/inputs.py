"""Check scores, and convert them to float64 arrays."""

from typing import Any

import numpy as np


def check_level(level: float) -> None:
    """Refuse a level that is not a probability."""
    if not 0 < level < 1:
        raise ValueError(f"level={level} was given; it must be a probability between 0 and 1, such as 0.95")


def right_or_wrong(*arms: np.ndarray) -> bool:
    """Whether every score is 0 or 1."""
    return all(bool(((x == 0) | (x == 1)).all()) for x in arms)


def read_scores(a: Any, b: Any, *, one_seed: bool = False, same_seeds: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Return both arms' scores as float64, S, P, checked."""
    first, second = _numbers(a, "a"), _numbers(b, "b")
    for name, values in (("a", first), ("b", second)):
        if values.ndim != 2:
            raise ValueError(
                f"{name} has shape {values.shape}; give seeds x samples. For the samples of one training: "
                f'{name}[None] with seeds="fixed". For one number per seed: paired_scores'
            )
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"a has {first.shape[1]} samples, b has {second.shape[1]}; both arms must be evaluated on the same "
            "samples in the same order. Evaluate both on one test set"
        )
    if first.shape[1] < 2:
        raise ValueError(f"{first.shape[1]} samples were given; at least 2 are needed")
    if same_seeds and first.shape[0] != second.shape[0]:
        raise ValueError(
            f"a has {first.shape[0]} seeds, b has {second.shape[0]}; row s of both must come from the same seed. Run "
            "the missing seeds, or use unpaired_difference, which needs more seeds"
        )
    least = 1 if one_seed else 2
    if min(first.shape[0], second.shape[0]) < least:
        raise ValueError(
            f"{min(first.shape[0], second.shape[0])} seed(s) were given; at least 2, better 5, are needed: one "
            "training of each arm says nothing about other trainings. Run more seeds, or compare only these trained "
            'weights: paired_difference(a, b, seeds="fixed")'
        )
    return first, second


def read_series(a: Any, b: Any, *, what: str = "seeds") -> tuple[np.ndarray, np.ndarray]:
    """Return two flat float64 arrays of one length, checked."""
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
        raise TypeError(
            f"{name} holds {array.dtype}; give booleans or numbers: right or wrong, or one score per sample"
        )
    array = array.astype(np.float64)
    bad = int(np.count_nonzero(~np.isfinite(array)))
    if bad:
        raise ValueError(
            f"{name} holds {bad} value(s) that are NaN or infinite, of {array.size}; a failed run cannot be compared: "
            "leave that seed out of both arms, or run it again"
        )
    return array
