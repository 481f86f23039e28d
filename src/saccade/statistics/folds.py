"""Variance of cross-validated means, whose training sets overlap.

Sources are told apart: how seeds vary is seen between seeds inside of a fold, how samples vary between samples (or
groups of them, whole), and what the samples add as training samples is taken for a share of the latter, since no set
alone shows it (Bengio and Grandvalet, 2004): variance of samples times 1 + share / (folds - 1). With one training a
fold, how seeds vary is what folds differ by beyond their samples. The corrected t of Nadeau and Bengio (2003)
instead takes everything from the few fold means, and is wider than needed. The shares and their reach are measured
with learners of real images: benchmarks/statistics/folds.py, docs/statistics.md.
"""

from dataclasses import dataclass

import numpy as np

from .spread import Spread, mean_squares

SHARED = {"once": 0.5, "seeds": 1.0, "cuts": 1.5}  # one training a fold, several, several cuts into folds


@dataclass(frozen=True)
class Folds:
    """How samples were split into folds."""

    count: int  # folds of a cut
    fold: np.ndarray | None  # of every sample, P int64, where all trainings share one cut; None for several
    # of every sample, P int64, where samples belong to groups; None where each stands for itself
    clusters: np.ndarray | None = None
    shared: float | None = None  # what training sets that share samples add, see above, instead of what was measured

    def inflation(self, *, seeds: int) -> float:
        """Return the ratio of the total variance, with that of training samples, to the one observed over samples."""
        share = SHARED["cuts" if self.fold is None else "once" if seeds == 1 else "seeds"]
        return 1 + (share if self.shared is None else self.shared) / (self.count - 1)

    def subset(self, mine: np.ndarray) -> "Folds":
        """Return the folds of some samples, P bool."""
        fold, clusters = (None if one is None else one[mine] for one in (self.fold, self.clusters))
        return Folds(self.count, fold, clusters, self.shared)

    def grouped(self, groups: int, samples: int, draws: np.random.Generator) -> tuple[np.ndarray, "Folds"]:
        """Return about `draws` groups of samples, P int64, within folds and with whole clusters, and their folds."""
        units = np.arange(samples) if self.clusters is None else np.unique(self.clusters, return_inverse=True)[1]
        rank = draws.permutation(int(units.max()) + 1)[units] % max(groups // self.count, 2)
        fold = np.zeros(samples, np.int64) if self.fold is None else self.fold
        places, group = np.unique(fold * samples + rank, return_inverse=True)
        return group, Folds(self.count, None if self.fold is None else places // samples)


def folded_spread(values: np.ndarray, folds: Folds) -> Spread:
    """Return the spread of the mean of out-of-fold values, S, P: of each training over all folds, of each sample.

    Args:
        values: differences or scores; row s is what the trainings of seed s said to all samples, each out of fold.
    """
    S, P = values.shape
    if S == 1:
        return _once(values[0], folds)
    ms = mean_squares(values)
    alone, sample_df = np.maximum(ms.sample - ms.rest, 0) / (S * P), ms.sample_df
    if folds.clusters is not None:
        total, sample_df = _cluster_variance(values.mean(0), folds.clusters)
        alone = np.maximum(total - ms.rest / (S * P), alone)
    sample = folds.inflation(seeds=S) * alone
    within, freedom = ms.seed, float(S - 1)
    if folds.fold is not None:
        parts = [(mean_squares(values[:, mine]).seed, int(mine.sum())) for mine in _parts(folds.fold, folds.count)]
        within = sum(square * size for square, size in parts) / P
        freedom = float(len(parts) * (S - 1))
    return Spread(within / (S * P), freedom, sample, sample_df, alone + ms.rest / (S * P))


def _once(values: np.ndarray, folds: Folds) -> Spread:
    """Return the spread of the mean of values, P, of one training a fold."""
    # Without folds it is the one cut of several that came to its end.
    fold = np.zeros(len(values), np.int64) if folds.fold is None else folds.fold
    parts = _parts(fold, folds.count)
    means = np.array([values[mine].mean() for mine in parts])
    rest = values.astype(float)
    for mine, mean in zip(parts, means, strict=True):
        rest[mine] -= mean
    clusters = np.arange(len(values)) if folds.clusters is None else folds.clusters
    alone, freedom = _cluster_variance(rest, clusters)
    alone *= freedom / max(freedom + 1 - len(parts), 1)  # one mean per fold was subtracted
    sample = folds.inflation(seeds=1) * alone
    if len(parts) == 1:  # a few samples of a class, or folds that are not known
        return Spread(0.0, np.inf, sample, freedom, sample)
    trained = max(float(means.var(ddof=1)) / len(parts) - alone, 0.0)
    return Spread(trained, float(len(parts) - 1), sample, freedom, sample)


def _parts(fold: np.ndarray, count: int) -> list[np.ndarray]:
    """Return the samples of each non-empty fold."""
    return [mine for number in range(count) if (mine := fold == number).any()]


def _cluster_variance(values: np.ndarray, clusters: np.ndarray) -> tuple[float, float]:
    """Return the variance of a mean of clustered values, and its degrees of freedom."""
    _, index = np.unique(clusters, return_inverse=True)
    sums = np.bincount(index, weights=values - values.mean())
    count = len(sums)
    return float(count / max(count - 1, 1) * np.square(sums).sum() / len(values) ** 2), float(max(count - 1, 1))
