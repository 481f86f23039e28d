"""Bootstrap intervals over samples, with common resamples for all models."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy  # its parts come when they are first used, which takes a moment

from .exact import mcnemar_counts
from .proportion import wilson

LEVEL = 0.95
RESAMPLES = 2000
RECORDS = 500_000  # that a number which is made of all of them reads over its resamples
MIN_RESAMPLES = 200  # resamples of such a number at least
BLOCK = 20_000_000  # counts held at a time

Statistic = Callable[[np.ndarray], np.ndarray]  # how often each sample counts, R, N -> R values


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ResampledDifference:
    """Difference of a metric between a run and the reference, over the same samples.

    Args:
        run: whose number.
        reference: the run it is compared with.
        metric: the number's name.
        value: run minus reference.
        low: lower end of the paired 95% interval.
        high: upper end.
        p_value: McNemar's exact test, where the number counts right answers; not corrected for how many are looked at.
        gained: samples right for the run alone.
        lost: samples right for the reference alone.
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


@dataclass(frozen=True)
class Resampled:
    """A metric of all samples and of every resample."""

    value: float  # over all samples
    drawn: np.ndarray  # over each resample, R
    scores: np.ndarray | None = None  # of each sample, N, where the number is their mean and each is a share
    counted: bool = False  # whether these are 1 for a right answer and 0 for a wrong one

    def estimate(self) -> Estimate:
        """Return the estimate with its interval."""
        return estimate(self.value, self.drawn, self.scores)

    def minus(self, other: "Resampled", *, run: str, reference: str, metric: str) -> ResampledDifference:
        """Return the difference from another run, over the same resamples."""
        low, high = interval(self.drawn - other.drawn)
        found = ResampledDifference(run, reference, metric, self.value - other.value, low, high)
        if not (self.counted and other.counted and self.scores is not None and other.scores is not None):
            return found
        p_value, gained, lost = mcnemar_counts(self.scores, other.scores)
        return replace(found, p_value=p_value, gained=gained, lost=lost)


def average(numbers: Sequence[Resampled]) -> Resampled:
    """Return the mean of metrics, for each resample."""
    scores = [one.scores for one in numbers if one.scores is not None]
    return Resampled(
        value=float(np.mean([one.value for one in numbers])),
        drawn=np.mean([one.drawn for one in numbers], axis=0),
        scores=np.mean(scores, axis=0) if len(scores) == len(numbers) else None,
    )


def resample_means(
    columns: Mapping[str, np.ndarray],
    statistics: Mapping[str, Statistic],
    *,
    count: int,
    seed: int,
    resamples: int,
    shares: Collection[str] = (),
    counted: Collection[str] = (),
) -> dict[str, Resampled]:
    """Return means over samples, and other statistics, over the same resamples.

    Args:
        columns: by name, of each sample, N.
        shares: names of means of shares.
        counted: names of means that count right answers.
    """
    table = np.stack([np.zeros(count), *columns.values()], 1)[:, 1:].astype(np.float64)
    drawn = resample(count, {"": mean_of(table), **statistics}, seed=seed, resamples=resamples)
    found = {
        name: Resampled(
            float(table[:, place].mean()),
            drawn[""][:, place],
            table[:, place] if name in shares else None,
            counted=name in counted,
        )
        for place, name in enumerate(columns)
    }
    return found | {name: Resampled(value, drawn[name]) for name, value in over_all(statistics, count).items()}


def fewer(count: int, resamples: int, *, condition: bool = False) -> int:
    """Return the number of resamples for a slow statistic.

    Args:
        count: records.
        resamples: of other numbers.
        condition: whether it is one of the many under conditions.
    """
    return min(resamples, MIN_RESAMPLES if condition else max(MIN_RESAMPLES, RECORDS // max(count, 1)))


def resample(
    count: int, statistics: Mapping[str, Statistic], *, seed: int, resamples: int = RESAMPLES
) -> dict[str, np.ndarray]:
    """Return each statistic's values over resampled samples."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in statistics}
    for weights in _weights(count, seed=seed, resamples=resamples):
        for name, statistic in statistics.items():
            parts[name].append(statistic(weights))
    return {name: np.concatenate(found) for name, found in parts.items()}


def estimate(value: float, resampled: np.ndarray, scores: np.ndarray | None = None) -> Estimate:
    """Return a value with the percentiles of its resampled values.

    Args:
        scores: 0 or 1 a sample if the value is their mean: where they all agree, resampling can say nothing, and
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


def _weights(count: int, *, seed: int, resamples: int) -> Iterator[np.ndarray]:
    """Yield sample counts of resamples, R, N float32, determined by the seed."""
    block = max(min(BLOCK // max(count, 1), resamples), 1)
    random = np.random.default_rng([seed, 0xB007])
    for begin in range(0, resamples, block):
        rows = min(block, resamples - begin)
        drawn = random.integers(count, size=(rows, count), dtype=np.int64)
        drawn += np.arange(rows)[:, None] * count
        yield np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count).astype(np.float32)


def record_statistic(records: np.ndarray, function: Callable[[np.ndarray], float]) -> Statistic:
    """Convert a function of records, N, ..., to a statistic, by repeating records."""

    def statistic(weights: np.ndarray) -> np.ndarray:
        distinct, where = np.unique(weights.astype(np.int64), axis=0, return_inverse=True)  # few, of few records
        rows = (np.repeat(np.arange(len(records)), counts) for counts in distinct)
        return np.array([function(records[row]) for row in rows])[where.reshape(-1)]

    return statistic


def mean_of(scores: np.ndarray) -> Statistic:
    """Return the mean over resampled samples as a statistic."""
    scores = scores.astype(np.float64)
    return lambda weights: weights @ scores / len(scores)


def group_mean(scores: np.ndarray, groups: np.ndarray) -> Statistic:
    """Return the mean over non-empty groups of their means as a statistic."""
    member = one_hot(groups, int(groups.max()) + 1)
    summed = member.multiply(scores.astype(np.float64)[:, None]).tocsr()

    def statistic(weights: np.ndarray) -> np.ndarray:
        counts, sums = np.asarray(weights @ member), np.asarray(weights @ summed)
        means = np.divide(sums, counts, out=np.zeros_like(counts), where=counts > 0)
        return means.sum(1) / (counts > 0).sum(1)

    return statistic


def one_hot(index: np.ndarray, count: int) -> Any:  # a sparse matrix of scipy
    """Return one-hot rows, N, count."""
    rows = np.arange(len(index))
    return scipy.sparse.csr_matrix((np.ones(len(index)), (rows, index)), shape=(len(index), count))


def over_all(statistics: Mapping[str, Statistic], count: int) -> dict[str, float]:
    """Return statistics of all samples, each counted once."""
    once = np.ones((1, count))
    return {name: float(statistic(once)[0]) for name, statistic in statistics.items()}
