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
    spread = float(np.sqrt(2.0**2 + taste_sd**2 + seed_sd**2))
    level = float(stats.norm.ppf(accuracy)) * np.sqrt(1.7**2 + spread**2)
    difficulty = 2 * rng.standard_normal((experiments, 1, pictures), dtype=np.float32)

    def answers(count: int, level: float) -> np.ndarray:
        taste = np.float32(taste_sd) * rng.standard_normal((experiments, 1, pictures), dtype=np.float32)
        quality = np.float32(seed_sd) * rng.standard_normal((experiments, count, 1), dtype=np.float32)
        odds = np.exp(difficulty + taste + np.float32(level)) * np.exp(quality)
        chance = rng.random((experiments, count, pictures), dtype=np.float32)
        return (chance * (1 + odds) < odds).astype(np.float32)

    truth = _mean_answer(level + effect, spread) - _mean_answer(level, spread)
    return answers(seeds[0], level), answers(seeds[1], level + effect), truth


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


def _mean_answer(level: float, spread: float) -> float:
    return float(WEIGHTS @ special.expit(level + spread * NODES) / WEIGHTS.sum())
