"""Experiments whose true difference is known, to check that the statistics do what they promise."""

import numpy as np
from scipy import special, stats

from .anova import MeanSquares

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)


def right_or_wrong(
    experiments: int,
    seeds: tuple[int, int],
    pictures: int,
    *,
    accuracy: float,
    effect: float,
    seed_sd: float,
    taste_sd: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Simulate answers of two arms on the same pictures: a logit-normal model with crossed trainings and pictures.

    A picture is answered rightly with a probability whose logit is the sum of a level, the picture's difficulty (sd 2,
    shared by the arms), the arm's taste for the picture and the training's quality. Pictures and trainings are drawn
    anew in every experiment.

    Args:
        experiments: how many.
        seeds: trainings of the first and of the second arm.
        pictures: test pictures.
        accuracy: of the first arm, about.
        effect: added to the second arm's logit.
        seed_sd: of a training's quality, in logits; 0.1 is one to two points of accuracy.
        taste_sd: of an arm's taste for pictures, in logits; it makes pictures differ for every seed alike.
        rng: where chance comes from.

    Returns:
        Scores of both arms, experiments, S, P, as float32, and the true difference of accuracy.
    """
    level, spread = _level(accuracy, seed_sd, taste_sd)
    difficulty = 2 * rng.standard_normal((experiments, 1, pictures), dtype=np.float32)
    sds = (seed_sd, taste_sd)
    first, second = (_answers(difficulty, n, x, sds, rng) for n, x in zip(seeds, (level, level + effect), strict=True))
    return first, second, _mean_answer(level + effect, spread) - _mean_answer(level, spread)


def useless_arms(
    experiments: int,
    arms: int,
    seeds: int,
    pictures: int,
    *,
    accuracy: float,
    seed_sd: float,
    taste_sd: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Simulate answers as `right_or_wrong` and return differences, experiments, arms, S, P, from one shared baseline.

    The arms differ from it by luck of trainings and by their taste for pictures; every true difference is zero.
    """
    level, _ = _level(accuracy, seed_sd, taste_sd)
    difficulty = 2 * rng.standard_normal((experiments, 1, pictures), dtype=np.float32)
    answers = [_answers(difficulty, seeds, level, (seed_sd, taste_sd), rng) for _ in range(arms + 1)]
    return np.stack(answers[1:], 1) - answers[0][:, None]


def useless_normal_arms(
    experiments: int, arms: int, seeds: int, pictures: int, *, share: float, rng: np.random.Generator
) -> np.ndarray:
    """Simulate normal differences, experiments, arms, S, P, from one shared baseline, every true difference zero.

    Args:
        experiments: how many.
        arms: how many beside the baseline.
        seeds: trainings of every arm.
        pictures: test pictures.
        share: of a mean difference's variance that trainings cause; pictures cause the rest.
        rng: where chance comes from.
    """
    scores = np.sqrt(share * seeds) * rng.standard_normal((experiments, arms + 1, seeds, 1))
    scores = scores + np.sqrt((1 - share) * pictures) * rng.standard_normal((experiments, arms + 1, 1, pictures))
    return scores[:, 1:] - scores[:, :1]


def normal_differences(
    experiments: int,
    seeds: int,
    pictures: int,
    *,
    mean: float,
    seed_sd: float,
    picture_sd: float,
    rest_sd: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Simulate differences, experiments, S, P, of the crossed model with normal trainings, pictures and rest."""
    differences = mean + rest_sd * rng.standard_normal((experiments, seeds, pictures))
    differences += seed_sd * rng.standard_normal((experiments, seeds, 1))
    differences += picture_sd * rng.standard_normal((experiments, 1, pictures))
    return differences


def normal_mean_squares(
    experiments: int,
    seeds: int,
    pictures: int,
    *,
    mean: float,
    seed_sd: float,
    picture_sd: float,
    rest_sd: float,
    rng: np.random.Generator,
) -> MeanSquares:
    """Draw the mean squares of `normal_differences` from their exact distributions, at no cost a picture."""
    S, P = seeds, pictures
    expected = (P * seed_sd**2 + rest_sd**2, S * picture_sd**2 + rest_sd**2, rest_sd**2)
    freedom = (S - 1, P - 1, (S - 1) * (P - 1))
    seed, picture, rest = (e * rng.chisquare(f, experiments) / f for e, f in zip(expected, freedom, strict=True))
    deviation = np.sqrt(seed_sd**2 / S + picture_sd**2 / P + rest_sd**2 / (S * P))
    means = mean + deviation * rng.standard_normal(experiments)
    return MeanSquares(means, seed, picture, rest, np.full(experiments, float(P)))


def _level(accuracy: float, seed_sd: float, taste_sd: float) -> tuple[float, float]:
    """Return the logit that gives about this accuracy, and the standard deviation of logits around it."""
    spread = float(np.sqrt(2.0**2 + taste_sd**2 + seed_sd**2))
    return float(stats.norm.ppf(accuracy) * np.sqrt(1.7**2 + spread**2)), spread


def _answers(
    difficulty: np.ndarray, count: int, level: float, sds: tuple[float, float], rng: np.random.Generator
) -> np.ndarray:
    experiments, _, pictures = difficulty.shape
    seed_sd, taste_sd = sds
    taste = np.float32(taste_sd) * rng.standard_normal((experiments, 1, pictures), dtype=np.float32)
    quality = np.float32(seed_sd) * rng.standard_normal((experiments, count, 1), dtype=np.float32)
    odds = np.exp(difficulty + taste + np.float32(level)) * np.exp(quality)
    chance = rng.random((experiments, count, pictures), dtype=np.float32)
    return (chance * (1 + odds) < odds).astype(np.float32)


def _mean_answer(level: float, spread: float) -> float:
    return float(WEIGHTS @ special.expit(level + spread * NODES) / WEIGHTS.sum())
