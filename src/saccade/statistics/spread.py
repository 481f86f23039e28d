"""Variance of a mean difference over random seeds and samples: intervals, p-values, power.

The crossed analysis of variance takes d[s, p] = mu + seed[s] + sample[p] + rest[s, p], all three random. Its
functions take leading dimensions, so that thousands of simulated experiments are one call.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy  # its parts come when they are first used, which takes a moment

SMALLEST_P = 1e-100  # below this p-values are not told apart; the square of its t quantile is still finite
NODES = 400  # points of the distribution of the seeds' mean square in a power computation


@dataclass(frozen=True)
class Spread:
    """The variance components of a mean difference; fields are numbers or arrays of one shape."""

    seed: Any  # variance from seeds, what a seed does to single samples included
    seed_df: Any  # degrees of freedom `seed` was estimated with
    sample: Any  # variance from the choice of samples, beyond what `seed` holds
    sample_df: Any  # degrees of freedom `sample` was estimated with
    fixed: Any  # variance if these very seeds were all that mattered; a sound interval is not much narrower
    # share of `seed` and degrees of freedom of each arm, where the arms have seeds of their own
    arms: tuple[tuple[Any, Any], ...] = ()

    @property
    def variance(self) -> Any:
        """The variance of the mean difference."""
        return self.seed + self.sample

    @property
    def certain(self) -> bool:
        """Whether the variance is zero."""
        return bool(self.variance == 0 and self.fixed == 0)

    @property
    def deviation(self) -> float:
        """The standard error of the mean difference, that of fixed seeds where all seeds agree by luck."""
        return float(np.sqrt(self.variance if self.variance > 0 else self.fixed))

    def half_width(self, level: float = 0.95) -> Any:
        """Return half the width of the interval that holds the true difference with probability `level`."""
        return self._half_width(1 - level)

    def _half_width(self, alpha: float) -> Any:
        # A source's t quantile counts by its share of the squared half-widths that the sources would have alone. A
        # share of the variances would be small just where few seeds show too little of it, and alarms too frequent.
        normal = scipy.special.ndtri(alpha / 2) ** 2
        sources = [(np.asarray(variance, dtype=float), freedom) for variance, freedom in self._sources()]
        excess = [scipy.special.stdtrit(freedom, alpha / 2) ** 2 - normal for _, freedom in sources]
        alone = [(normal + more) * variance for more, (variance, _) in zip(excess, sources, strict=True)]
        together = sum(alone)
        squared = sum(
            variance * (normal + more * np.divide(one, together, out=np.zeros_like(together), where=together > 0))
            for more, one, (variance, _) in zip(excess, alone, sources, strict=True)
        )
        return np.maximum(np.sqrt(squared), np.sqrt(normal * np.asarray(self.fixed)) / 2)

    def _sources(self) -> list[tuple[Any, Any]]:
        """Return variance and degrees of freedom of each component."""
        seeds = [(share * self.seed, freedom) for share, freedom in self.arms] or [(self.seed, self.seed_df)]
        return [*seeds, (self.sample, self.sample_df)]

    def p_value(self, mean: float) -> float:
        """Return the level at which the interval around `mean` just touches zero."""
        if mean == 0:
            return 1.0
        if self.certain:
            return 0.0
        if self._half_width(SMALLEST_P) < abs(mean):
            return SMALLEST_P
        log_p = scipy.optimize.brentq(
            lambda x: float(self._half_width(np.exp(x))) - abs(mean), np.log(SMALLEST_P), 0, xtol=1e-12
        )
        return float(np.exp(log_p))

    def power(self, difference: float, *, level: float = 0.95) -> float:
        """Return the power: the probability that the interval excludes zero for a true difference and this spread."""
        return _power(difference, self._drawn_half_widths(level), self.deviation)

    def detectable(self, *, level: float = 0.95, power: float = 0.8) -> float:
        """Return the true difference that is found with probability `power`, were this spread the true one."""
        if not (0 < level < 1 and 1 - level < power < 1):
            raise ValueError(
                f"level={level}, power={power} were given; both must be below 1, and power above 1 - level"
            )
        if self.certain:
            return 0.0
        deviation, widths = self.deviation, self._drawn_half_widths(level)
        top = float(widths.max()) + 10 * deviation  # found for certain
        return float(
            scipy.optimize.brentq(lambda x: _power(x, widths, deviation) - power, 0, top, xtol=1e-9 * deviation)
        )

    def estimated_detectable(self, *, level: float = 0.95) -> float:
        """Return `detectable` made right on average: a spread estimated from few seeds is mostly too small."""
        return self.detectable(level=level) / self.understated

    @property
    def understated(self) -> float:
        """The share of the true standard error that its estimate shows on average; 0.89 with three seeds alone."""
        freedom = self.seed_df * (self.variance / self.seed) ** 2 if self.seed > 0 else np.inf
        if freedom > 1e4:
            return 1.0
        return float(np.sqrt(2) * scipy.special.poch(freedom / 2, 0.5) / np.sqrt(freedom))  # the mean of chi

    def scalar(self) -> "Spread":
        """Return the spread of one experiment in plain numbers."""
        arms = tuple((float(share), float(freedom)) for share, freedom in self.arms)
        numbers = {name: float(x) for name, x in vars(self).items() if name != "arms"}
        return Spread(**numbers, arms=arms)

    def with_seeds(self, seeds: int, *, now: int) -> "Spread":
        """Return the spread to expect from another number of seeds on the same samples."""
        ratio, more = now / seeds, (seeds - 1) / (now - 1)
        fixed = self.sample + (self.fixed - self.sample) * ratio
        arms = tuple((share, freedom * more) for share, freedom in self.arms)
        return replace(self, seed=self.seed * ratio, seed_df=self.seed_df * more, fixed=fixed, arms=arms)

    def _drawn_half_widths(self, level: float) -> np.ndarray:
        """Return equally likely half-widths of the intervals of repeated experiments, NODES."""
        if not np.isfinite(self.seed_df):
            return np.atleast_1d(self.half_width(level))
        shares = (np.arange(NODES) + 0.5) / NODES
        drawn = 2 * scipy.special.gammaincinv(self.seed_df / 2, shares) / self.seed_df  # quantiles of chi squared
        return np.asarray(replace(self, seed=self.seed * drawn).half_width(level))


def _power(difference: float, half_widths: np.ndarray, deviation: float) -> float:
    if deviation == 0:
        return float(difference != 0)
    above = scipy.special.ndtr((difference - half_widths) / deviation)
    below = scipy.special.ndtr((-difference - half_widths) / deviation)
    return float(np.mean(above + below))


@dataclass(frozen=True)
class MeanSquares:
    """Mean squares of scores over seeds and samples; fields have the leading shape of the scores."""

    mean: Any  # the grand mean
    seed: Any  # mean square between seeds; its expectation is samples x var(seed) + var(rest)
    sample: Any  # mean square between samples; its expectation is seeds x var(sample) + var(rest)
    rest: Any  # mean square of what neither explains; its expectation is var(rest)
    sample_df: Any  # what the spread between samples is known with, fewer where few samples differ at all


def mean_squares(scores: np.ndarray) -> MeanSquares:
    """Return the mean squares of scores, ..., S, P; with one seed those of seeds and rest are zero."""
    S, P = scores.shape[-2:]
    by_seed, by_sample = scores.mean(-1), scores.mean(-2)
    mean = by_seed.mean(-1)
    from_mean = by_sample - mean[..., None]
    between_samples = S * np.square(from_mean).sum(-1)
    between_seeds = P * np.square(by_seed - mean[..., None]).sum(-1)
    total = np.square(scores - mean[..., None, None]).sum((-2, -1))
    rest = total - between_seeds - between_samples
    rest = np.where(rest > 1e-12 * total, rest, 0.0)
    noise = 1e-26 * np.square(scores).sum((-2, -1))  # what rounding leaves of a sum of squares that is zero
    sums = (between_seeds, between_samples, rest)
    between_seeds, between_samples, rest = (np.where(x > noise, x, 0.0) for x in sums)
    # Means of right or wrong answers come in steps of 1 / P: seeds that score alike may differ by the rounding,
    # whose variance is a twelfth of a squared step.
    stepped = (scores == np.rint(scores)).all((-2, -1)) & (rest > 0)
    least = np.where(stepped, 1 / (12 * P), 0.0)
    return MeanSquares(
        mean=mean,
        seed=np.maximum(between_seeds / max(S - 1, 1), least),
        sample=between_samples / (P - 1),
        rest=rest / max((S - 1) * (P - 1), 1),
        sample_df=_freedom(from_mean),
    )


def paired_spread(ms: MeanSquares, *, seeds: int, samples: int) -> Spread:
    """Return the spread of the mean of differences that share seeds and samples."""
    n = seeds * samples
    # Both mean squares hold var(rest); where the samples' own falls short of it by luck, the rest is the sounder one.
    fixed = np.maximum(ms.sample, ms.rest) / n
    return Spread(ms.seed / n, seeds - 1, np.maximum(ms.sample - ms.rest, 0) / n, ms.sample_df, fixed)


def unpaired_spread(a: np.ndarray, b: np.ndarray) -> Spread:
    """Return the spread of mean(b) - mean(a) for scores ..., S, P of arms that share samples but not seeds."""
    P = a.shape[-1]
    arms = [(mean_squares(x), x.shape[-2]) for x in (a, b)]
    by_arm = [ms.seed / (S * P) for ms, S in arms]
    freedom = joined_freedom(*by_arm, *(S - 1 for _, S in arms))
    share = _share(*by_arm)
    between = mean_squares((b.mean(-2) - a.mean(-2))[..., None, :])
    fixed = between.sample / P
    rest = sum(ms.rest / (S * P) for ms, S in arms)
    return Spread(
        seed=by_arm[0] + by_arm[1],
        seed_df=freedom,
        sample=np.maximum(fixed - rest, 0),
        sample_df=between.sample_df,
        fixed=fixed,
        arms=((share, arms[0][1] - 1), (1 - share, arms[1][1] - 1)),
    )


def fixed_spread(ms: MeanSquares, *, seeds: int, samples: int) -> Spread:
    """Return the spread of the mean of differences over samples alone, these seeds being all that matters."""
    variance = ms.sample / (seeds * samples)
    return Spread(np.zeros_like(variance), np.inf, variance, ms.sample_df, variance)


def series_spread(values: np.ndarray) -> Spread:
    """Return the spread of the mean of one number a seed, S: Student's, over seeds alone."""
    variance = float(values.var(ddof=1)) / len(values)
    varies = variance > 1e-26 * float(np.square(values).mean())  # else it is rounding of equal values
    return Spread(variance if varies else 0.0, len(values) - 1, 0.0, np.inf, 0.0)


def joined_freedom(first: Any, second: Any, df_first: int, df_second: int) -> Any:
    """Return the degrees of freedom of the sum of two variances of means, for planning.

    1 / freedom runs from 1 / (df_first + df_second), where the shares are as the degrees of freedom, to that of one arm
    where the other has no variance. Satterthwaite's formula takes the distance between them to the power 2, which is
    too sure with few and unequal seeds; 1.5 is not.
    """
    share = _share(first, second)
    balanced, together = df_first / (df_first + df_second), 1 / (df_first + df_second)
    towards_first = np.clip((share - balanced) / (1 - balanced), 0, 1) ** 1.5
    towards_second = np.clip((balanced - share) / balanced, 0, 1) ** 1.5
    return 1 / (together + towards_first * (1 / df_first - together) + towards_second * (1 / df_second - together))


def _share(first: Any, second: Any) -> Any:
    total = np.asarray(first + second, dtype=float)
    return np.divide(first, total, out=np.full_like(total, 0.5), where=total > 0)


def _freedom(from_mean: np.ndarray) -> np.ndarray:
    """Return the degrees of freedom of a variance from the fourth moment, P for a normal distribution."""
    P = from_mean.shape[-1]
    second = np.square(from_mean).mean(-1)
    excess = np.square(np.square(from_mean) - second[..., None]).mean(-1)
    freedom = np.divide(2 * P * second**2, excess, out=np.full_like(second, 1e9), where=excess > 0)
    return np.clip(freedom, 1, 1e9)
