"""Numbers of resampled pictures, as functions of how often each picture counts."""

from collections.abc import Callable, Mapping

import numpy as np
from scipy import sparse

from ..tasks.metric import GROUP, MetricSpec

Statistic = Callable[[np.ndarray], np.ndarray]  # how often each picture counts, R, N -> R values


def statistic_of(spec: MetricSpec, columns: Mapping[str, np.ndarray]) -> Statistic:
    """Return a metric that is no mean over pictures as a statistic.

    Args:
        spec: of the metric.
        columns: records of the pictures by column, N, ...
    """
    if spec.by_group:
        return group_mean(columns[spec.column], columns[GROUP])
    records = columns[spec.column]

    def statistic(weights: np.ndarray) -> np.ndarray:
        rows = (np.repeat(np.arange(len(records)), counts) for counts in weights.astype(np.int64))
        return np.array([spec.combine({spec.column: records[row]}) for row in rows])

    return statistic


def mean_of(scores: np.ndarray) -> Statistic:
    """Return the mean over resampled pictures as a statistic."""
    scores = scores.astype(np.float64)
    return lambda weights: weights @ scores / len(scores)


def group_mean(scores: np.ndarray, groups: np.ndarray) -> Statistic:
    """Return the mean over groups of their means as a statistic; groups without pictures do not count."""
    member = one_hot(groups, int(groups.max()) + 1)
    summed = member.multiply(scores.astype(np.float64)[:, None]).tocsr()

    def statistic(weights: np.ndarray) -> np.ndarray:
        counts, sums = np.asarray(weights @ member), np.asarray(weights @ summed)
        means = np.divide(sums, counts, out=np.zeros_like(counts), where=counts > 0)
        return means.sum(1) / (counts > 0).sum(1)

    return statistic


def one_hot(index: np.ndarray, count: int) -> sparse.csr_matrix:
    """Return which of so many each is, N, count."""
    rows = np.arange(len(index))
    return sparse.csr_matrix((np.ones(len(index)), (rows, index)), shape=(len(index), count))


def over_all(statistics: Mapping[str, Statistic], count: int) -> dict[str, float]:
    """Return statistics of all pictures, each counted once."""
    once = np.ones((1, count))
    return {name: float(statistic(once)[0]) for name, statistic in statistics.items()}
