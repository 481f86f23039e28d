"""What numbers may be, over other pictures of the same kind: resampled pictures, the same for all models."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binomtest

from ..report.tally import wilson
from .statistic import Statistic, mean_of, over_all

LEVEL = 0.95
RESAMPLES = 2000
RECORDS = 500_000  # that a number which is made of all of them reads over its resamples
FEWEST = 200  # resamples of such a number at least
BLOCK = 20_000_000  # counts held at a time


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


@dataclass(frozen=True)
class Resampled:
    """A number of all pictures and of every resample of them.

    Args:
        value: over all pictures.
        drawn: over each resample, R.
        scores: of each picture, N, where the number is their mean and each is a share.
        counted: whether these are 1 for a right answer and 0 for a wrong one.
    """

    value: float
    drawn: np.ndarray
    scores: np.ndarray | None = None
    counted: bool = False

    def estimate(self) -> Estimate:
        """Return the number with its interval."""
        return estimate(self.value, self.drawn, self.scores)

    def minus(self, other: "Resampled", *, run: str, reference: str, metric: str) -> Difference:
        """Return how much higher it is than another run's, over the same resamples."""
        low, high = interval(self.drawn - other.drawn)
        found = Difference(run, reference, metric, self.value - other.value, low, high)
        if not (self.counted and other.counted and self.scores is not None and other.scores is not None):
            return found
        p_value, gained, lost = mcnemar(self.scores, other.scores)
        return replace(found, p_value=p_value, gained=gained, lost=lost)


def average(numbers: Sequence[Resampled]) -> Resampled:
    """Return the mean of numbers, resample by resample."""
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
    """Return numbers that are means over pictures, and other statistics, over the same resamples.

    Args:
        columns: by name, of each picture, N.
        statistics: by name.
        count: pictures.
        seed: the same one gives the same resamples.
        resamples: how many.
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
    """Return how many of the resamples a number is computed for that has to read all its records for each.

    Args:
        count: records.
        resamples: of other numbers.
        condition: whether it is one of the many under conditions.
    """
    return min(resamples, FEWEST if condition else max(FEWEST, RECORDS // max(count, 1)))


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
