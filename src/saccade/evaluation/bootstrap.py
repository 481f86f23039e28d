"""What numbers may be, over other pictures of the same kind: resampled pictures, the same for all models."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from ..report.tally import wilson

LEVEL = 0.95
RESAMPLES = 2000
BLOCK = 20_000_000  # counts held at a time

Statistic = Callable[[np.ndarray], np.ndarray]  # how often each picture counts, R, N -> R values


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """How much higher a number is for one run than for the reference, over the same pictures.

    Args:
        run: whose number.
        reference: the run it is compared with.
        metric: the number's name.
        value: run minus reference.
        low: lower end of the paired 95% interval.
        high: upper end.
        p_value: McNemar's exact test, where the number counts right answers; not corrected for how many are looked at.
        gained: pictures right for the run alone.
        lost: pictures right for the reference alone.
    """

    run: str
    reference: str
    metric: str
    value: float
    low: float
    high: float
    p_value: float | None = None
    gained: int | None = None
    lost: int | None = None


def resample(
    count: int, statistics: Mapping[str, Statistic], *, seed: int, resamples: int = RESAMPLES
) -> dict[str, np.ndarray]:
    """Return each statistic's values over resampled pictures.

    Args:
        count: pictures.
        statistics: see `Statistic`.
        seed: the same one gives the same resamples.
        resamples: how many.
    """
    parts: dict[str, list[np.ndarray]] = {name: [] for name in statistics}
    for weights in _weights(count, seed=seed, resamples=resamples):
        for name, statistic in statistics.items():
            parts[name].append(statistic(weights))
    return {name: np.concatenate(found) for name, found in parts.items()}


def estimate(value: float, resampled: np.ndarray, scores: np.ndarray | None = None) -> Estimate:
    """Return a value with the percentiles of its resampled values.

    Args:
        value: over all pictures.
        resampled: what `resample` returned.
        scores: 0 or 1 a picture if the value is their mean: where they all agree, resampling can say nothing, and
            Wilson's interval is given.
    """
    if scores is not None and len(scores) and (scores == scores[0]).all() and scores[0] in (0, 1):
        return Estimate(value, *wilson(int(scores.sum()), len(scores), level=LEVEL))
    low, high = interval(resampled)
    return Estimate(value, low, high)


def interval(resampled: np.ndarray) -> tuple[float, float]:
    """Return the 95% percentile interval."""
    low, high = np.nanquantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def mcnemar(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, int, int]:
    """Return McNemar's exact p-value of 0/1 scores, and how many pictures are right for one alone."""
    gained, lost = int(((ours == 1) & (theirs == 0)).sum()), int(((ours == 0) & (theirs == 1)).sum())
    if gained + lost == 0:
        return 1.0, 0, 0
    return float(binomtest(gained, gained + lost, 0.5).pvalue), gained, lost


def _weights(count: int, *, seed: int, resamples: int) -> Iterator[np.ndarray]:
    """Yield how often each picture was drawn, R, N float32; the same whatever is asked of it."""
    block = max(min(BLOCK // max(count, 1), resamples), 1)
    random = np.random.default_rng([seed, 0xB007])
    for begin in range(0, resamples, block):
        rows = min(block, resamples - begin)
        drawn = random.integers(count, size=(rows, count), dtype=np.int64)
        drawn += np.arange(rows)[:, None] * count
        yield np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count).astype(np.float32)
