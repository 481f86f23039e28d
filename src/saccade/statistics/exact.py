"""Exact tests with fewer assumptions than the interval: sign flips over seeds, McNemar over samples."""

from collections.abc import Sequence

import numpy as np
import scipy  # its parts come when they are first used, which takes a moment

ENUMERATED = 16  # seeds up to which all sign patterns are tried, 2^16
DRAWN = 100_000  # sign patterns drawn above that


def sign_flip(per_seed: Sequence[float] | np.ndarray, *, seed: int = 0) -> float:
    """Sign-flip test: return the share of sign patterns whose mean is at least as far from zero as the observed one.

    It asks about other seeds on these very samples. It is never below 2 / 2^seeds: five seeds do not reach 0.05.

    Args:
        seed: of the patterns drawn when there are more than 16 seeds; below that all are tried.
    """
    values = np.asarray(per_seed, dtype=float)
    observed = abs(values.sum()) * (1 - 1e-12)  # tolerance for ties
    if len(values) > ENUMERATED:
        signs = np.random.default_rng(seed).integers(0, 2, (DRAWN, len(values)), dtype=np.int8) * 2.0 - 1
        return float((np.count_nonzero(np.abs(signs @ values) >= observed) + 1) / (DRAWN + 1))
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    tolerance = 1e-12 * np.abs(values).sum()
    return float(np.mean(np.abs(sums) >= observed - tolerance))


def mcnemar(differences: np.ndarray) -> float:
    """Return McNemar's exact p-value for the numbers of samples that favour either arm.

    For one seed of right or wrong answers this is McNemar's exact test. For several, a sample counts once, for the arm
    that was right more often on it: counting seeds x samples would take one sample's seeds for independent samples.

    Args:
        differences: P, or S, P, which are averaged over seeds first.
    """
    values = np.atleast_2d(differences).mean(0)
    values = np.where(np.abs(values) > 1e-12 * max(np.abs(values).max(), 1e-300), values, 0)
    wins, losses = int((values > 0).sum()), int((values < 0).sum())
    return sign_test(wins, losses)


def mcnemar_counts(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, int, int]:
    """Return McNemar's exact p-value of two models' 0/1 scores, and both discordant counts."""
    gained, lost = int(((ours == 1) & (theirs == 0)).sum()), int(((ours == 0) & (theirs == 1)).sum())
    return sign_test(gained, lost), gained, lost


def sign_test(wins: int, losses: int) -> float:
    """Return the exact two-sided p-value of the sign test; for two models' predictions, McNemar's."""
    both = wins + losses
    return float(min(2 * scipy.special.bdtr(min(wins, losses), both, 0.5), 1)) if both else 1.0  # both tails
