"""The crossed analysis of variance of differences: which share comes from trainings, which from pictures.

The model is d[s, p] = mu + training[s] + picture[p] + rest[s, p], all three random. Every function takes leading
dimensions, so that thousands of simulated experiments are one call.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .spread import Spread


@dataclass(frozen=True)
class MeanSquares:
    """Mean squares of scores over seeds and pictures; fields have the leading shape of the scores.

    Args:
        mean: the grand mean.
        seed: mean square between seeds; its expectation is pictures x var(training) + var(rest).
        picture: mean square between pictures; its expectation is seeds x var(picture) + var(rest).
        rest: mean square of what neither explains; its expectation is var(rest).
        picture_df: what the spread between pictures is known with, fewer where few pictures differ at all.
    """

    mean: Any
    seed: Any
    picture: Any
    rest: Any
    picture_df: Any


def mean_squares(scores: np.ndarray) -> MeanSquares:
    """Return the mean squares of scores, ..., S, P; with one seed those of seeds and rest are zero."""
    S, P = scores.shape[-2:]
    by_seed, by_picture = scores.mean(-1), scores.mean(-2)
    mean = by_seed.mean(-1)
    from_mean = by_picture - mean[..., None]
    between_pictures = S * np.square(from_mean).sum(-1)
    between_seeds = P * np.square(by_seed - mean[..., None]).sum(-1)
    total = np.square(scores - mean[..., None, None]).sum((-2, -1))
    rest = total - between_seeds - between_pictures
    rest = np.where(rest > 1e-12 * total, rest, 0.0)
    noise = 1e-26 * np.square(scores).sum((-2, -1))  # what rounding leaves of a sum of squares that is zero
    sums = (between_seeds, between_pictures, rest)
    between_seeds, between_pictures, rest = (np.where(x > noise, x, 0.0) for x in sums)
    # Means of right or wrong answers come in steps of 1 / P: trainings that score alike may differ by the rounding,
    # whose variance is a twelfth of a squared step.
    stepped = (scores == np.rint(scores)).all((-2, -1)) & (rest > 0)
    least = np.where(stepped, 1 / (12 * P), 0.0)
    return MeanSquares(
        mean=mean,
        seed=np.maximum(between_seeds / max(S - 1, 1), least),
        picture=between_pictures / (P - 1),
        rest=rest / max((S - 1) * (P - 1), 1),
        picture_df=_freedom(from_mean),
    )


def paired_spread(ms: MeanSquares, *, seeds: int, pictures: int) -> Spread:
    """Return the spread of the mean of differences that share seeds and pictures."""
    n = seeds * pictures
    # Both mean squares hold var(rest); where the pictures' own falls short of it by luck, the rest is the sounder one.
    fixed = np.maximum(ms.picture, ms.rest) / n
    return Spread(ms.seed / n, seeds - 1, np.maximum(ms.picture - ms.rest, 0) / n, ms.picture_df, fixed)


def unpaired_spread(a: np.ndarray, b: np.ndarray) -> Spread:
    """Return the spread of mean(b) - mean(a) for scores ..., S, P of arms that share pictures but not seeds."""
    P = a.shape[-1]
    arms = [(mean_squares(x), x.shape[-2]) for x in (a, b)]
    by_arm = [ms.seed / (S * P) for ms, S in arms]
    freedom = joined_freedom(*by_arm, *(S - 1 for _, S in arms))
    share = _share(*by_arm)
    between = mean_squares((b.mean(-2) - a.mean(-2))[..., None, :])
    fixed = between.picture / P
    rest = sum(ms.rest / (S * P) for ms, S in arms)
    return Spread(
        seed=by_arm[0] + by_arm[1],
        seed_df=freedom,
        picture=np.maximum(fixed - rest, 0),
        picture_df=between.picture_df,
        fixed=fixed,
        arms=((share, arms[0][1] - 1), (1 - share, arms[1][1] - 1)),
    )


def fixed_spread(ms: MeanSquares, *, seeds: int, pictures: int) -> Spread:
    """Return the spread of the mean of differences over pictures alone, these trainings being all that matters."""
    variance = ms.picture / (seeds * pictures)
    return Spread(np.zeros_like(variance), np.inf, variance, ms.picture_df, variance)


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
