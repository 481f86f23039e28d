"""Exact tests that stand beside the interval: sign flips over seeds, McNemar over images, Holm over arms."""

from collections.abc import Sequence

import numpy as np

from ..report.tally import sign_test

ENUMERATED = 16  # seeds up to which all sign patterns are tried, 2^16
DRAWN = 100_000  # sign patterns drawn above that


def sign_flip(per_seed: Sequence[float] | np.ndarray, *, seed: int = 0) -> float:
    """Return the share of sign patterns of the per-seed differences whose mean is as far from zero as the observed.

    It asks of trainings on this very test set, and cannot be smaller than 2 / 2^seeds: five seeds never reach 0.05.

    Args:
        seed: of the patterns drawn when there are more than 16 seeds; below that all are tried.
    """
    values = np.asarray(per_seed, dtype=float)
    observed = abs(values.sum()) * (1 - 1e-12)  # patterns that tie must not be lost to rounding
    if len(values) > ENUMERATED:
        signs = np.random.default_rng(seed).integers(0, 2, (DRAWN, len(values)), dtype=np.int8) * 2.0 - 1
        return float((np.count_nonzero(np.abs(signs @ values) >= observed) + 1) / (DRAWN + 1))
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    tolerance = 1e-12 * np.abs(values).sum()
    return float(np.mean(np.abs(sums) >= observed - tolerance))


def mcnemar(differences: np.ndarray) -> float:
    """Return the exact binomial p-value of how many images favour either arm.

    For one seed of right or wrong answers this is McNemar's exact test. For several, an image counts once, for the arm
    that was right more often on it: counting seeds x images would take one image's seeds for independent images.

    Args:
        differences: P, or S, P, which are averaged over seeds first.
    """
    values = np.atleast_2d(differences).mean(0)
    values = np.where(np.abs(values) > 1e-12 * max(np.abs(values).max(), 1e-300), values, 0)
    wins, losses = int((values > 0).sum()), int((values < 0).sum())
    return sign_test(wins, losses)


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return Holm's adjusted p-values, in the order given: the chance of any false alarm stays at the level used."""
    p = np.asarray(p_values, dtype=float)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p-values {p_values!r} were given; give a flat list of numbers from 0 to 1, one an arm")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted


def holm_levels(p_values: Sequence[float] | np.ndarray, *, level: float = 0.95) -> np.ndarray:
    """Return the level for each arm's interval at which it excludes zero exactly when Holm's procedure rejects."""
    p = np.asarray(p_values, dtype=float)
    alpha, allowed = 1 - level, np.empty_like(p)
    still_rejecting, divisor = True, len(p)
    for rank, index in enumerate(np.argsort(p, kind="stable")):
        if still_rejecting:
            divisor = len(p) - rank
            still_rejecting = bool(p[index] < alpha / divisor)
        allowed[index] = alpha / divisor
    return 1 - allowed
