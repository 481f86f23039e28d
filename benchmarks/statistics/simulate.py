"""Experiments whose true difference is known, to check that the statistics do what they promise."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special, stats

from saccade.statistics.spread import MeanSquares

Simulated = Callable[..., tuple[np.ndarray, np.ndarray]]

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)


def right_or_wrong(
    experiments: int,
    seeds: tuple[int, int],
    samples: int,
    *,
    accuracy: float,
    effect: float,
    seed_sd: float,
    taste_sd: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Simulate answers of two arms on the same images: a logit-normal model with crossed trainings and images.

    An image is answered rightly with a probability whose logit is the sum of a level, the image's difficulty (sd 2,
    shared by the arms), the arm's taste for the image and the training's quality. Images and trainings are drawn
    anew in every experiment.

    Args:
        experiments: how many.
        seeds: trainings of the first and of the second arm.
        samples: test images.
        accuracy: of the first arm, about.
        effect: added to the second arm's logit.
        seed_sd: of a training's quality, in logits; 0.1 is one to two points of accuracy.
        taste_sd: of an arm's taste for images, in logits; it makes images differ for every seed alike.
        rng: where chance comes from.

    Returns:
        Scores of both arms, experiments, S, P, as float32, and the true difference of accuracy.
    """
    level, spread = _level(accuracy, seed_sd, taste_sd)
    difficulty = 2 * rng.standard_normal((experiments, 1, samples), dtype=np.float32)
    sds = (seed_sd, taste_sd)
    first, second = (_answers(difficulty, n, x, sds, rng) for n, x in zip(seeds, (level, level + effect), strict=True))
    return first, second, _mean_answer(level + effect, spread) - _mean_answer(level, spread)


def useless_arms(
    experiments: int,
    arms: int,
    seeds: int,
    samples: int,
    *,
    accuracy: float,
    seed_sd: float,
    taste_sd: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Simulate answers as `right_or_wrong` and return differences, experiments, arms, S, P, from one shared baseline.

    The arms differ from it by luck of trainings and by their taste for images; every true difference is zero.
    """
    level, _ = _level(accuracy, seed_sd, taste_sd)
    difficulty = 2 * rng.standard_normal((experiments, 1, samples), dtype=np.float32)
    answers = [_answers(difficulty, seeds, level, (seed_sd, taste_sd), rng) for _ in range(arms + 1)]
    return np.stack(answers[1:], 1) - answers[0][:, None]


def useless_normal_arms(
    experiments: int, arms: int, seeds: int, samples: int, *, share: float, rng: np.random.Generator
) -> np.ndarray:
    """Simulate normal differences, experiments, arms, S, P, from one shared baseline, every true difference zero.

    Args:
        experiments: how many.
        arms: how many beside the baseline.
        seeds: trainings of every arm.
        samples: test images.
        share: of a mean difference's variance that trainings cause; images cause the rest.
        rng: where chance comes from.
    """
    scores = np.sqrt(share * seeds) * rng.standard_normal((experiments, arms + 1, seeds, 1))
    scores = scores + np.sqrt((1 - share) * samples) * rng.standard_normal((experiments, arms + 1, 1, samples))
    return scores[:, 1:] - scores[:, :1]


def normal_differences(
    experiments: int,
    seeds: int,
    samples: int,
    *,
    mean: float,
    seed_sd: float,
    sample_sd: float,
    rest_sd: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Simulate differences, experiments, S, P, of the crossed model with normal trainings, images and rest."""
    differences = mean + rest_sd * rng.standard_normal((experiments, seeds, samples))
    differences += seed_sd * rng.standard_normal((experiments, seeds, 1))
    differences += sample_sd * rng.standard_normal((experiments, 1, samples))
    return differences


def normal_mean_squares(
    experiments: int,
    seeds: int,
    samples: int,
    *,
    mean: float,
    seed_sd: float,
    sample_sd: float,
    rest_sd: float,
    rng: np.random.Generator,
) -> MeanSquares:
    """Draw the mean squares of `normal_differences` from their exact distributions, at no cost an image."""
    S, P = seeds, samples
    expected = (P * seed_sd**2 + rest_sd**2, S * sample_sd**2 + rest_sd**2, rest_sd**2)
    freedom = (S - 1, P - 1, (S - 1) * (P - 1))
    seed, sample, rest = (e * rng.chisquare(f, experiments) / f for e, f in zip(expected, freedom, strict=True))
    deviation = np.sqrt(seed_sd**2 / S + sample_sd**2 / P + rest_sd**2 / (S * P))
    means = mean + deviation * rng.standard_normal(experiments)
    return MeanSquares(means, seed, sample, rest, np.full(experiments, float(P)))


def _level(accuracy: float, seed_sd: float, taste_sd: float) -> tuple[float, float]:
    """Return the logit that gives about this accuracy, and the standard deviation of logits around it."""
    spread = float(np.sqrt(2.0**2 + taste_sd**2 + seed_sd**2))
    return float(stats.norm.ppf(accuracy) * np.sqrt(1.7**2 + spread**2)), spread


def _answers(
    difficulty: np.ndarray, count: int, level: float, sds: tuple[float, float], rng: np.random.Generator
) -> np.ndarray:
    experiments, _, samples = difficulty.shape
    seed_sd, taste_sd = sds
    taste = np.float32(taste_sd) * rng.standard_normal((experiments, 1, samples), dtype=np.float32)
    quality = np.float32(seed_sd) * rng.standard_normal((experiments, count, 1), dtype=np.float32)
    odds = np.exp(difficulty + taste + np.float32(level)) * np.exp(quality)
    chance = rng.random((experiments, count, samples), dtype=np.float32)
    return (chance * (1 + odds) < odds).astype(np.float32)


def _mean_answer(level: float, spread: float) -> float:
    return float(WEIGHTS @ special.expit(level + spread * NODES) / WEIGHTS.sum())


def confusions(
    seeds: int,
    samples: int,
    *,
    effect: float,
    seed_sd: float,
    taste_sd: float,
    rng: np.random.Generator,
    quality: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Simulate segmentations of the same samples by two arms: counted pixels of four classes, the last ones rare.

    A pixel of a class is found with a probability whose logit is the sum of a level, the sample's difficulty, the arm's
    taste for the sample, the training's quality and chance; the harder a sample, the more pixels are taken for a class
    wrongly.

    Args:
        seeds: trainings of each arm.
        samples: how many.
        effect: added to the second arm's logit.
        seed_sd: of a training's quality, in logits.
        taste_sd: of an arm's taste for samples, in logits.
        rng: where chance comes from.
        quality: of the trainings of both arms, S, instead of drawn ones.

    Returns:
        Records of both arms, S, N, 4, 3: pixels found, said and there, of each class.
    """
    areas = (rng.random((samples, 4)) < (0.9, 0.6, 0.3, 0.15)) * rng.gamma(1.5, 60, (samples, 4))
    there = np.broadcast_to(areas.astype(np.int64), (seeds, samples, 4))
    difficulty = rng.standard_normal((samples, 1)) + 0.5 * rng.standard_normal((samples, 4))
    found = []
    for level in (1.0, 1.0 + effect):
        logits = level + difficulty + taste_sd * rng.standard_normal((samples, 4))
        drawn = seed_sd * rng.standard_normal(seeds) if quality is None else quality
        share = special.expit(logits + drawn[:, None, None] + 0.3 * rng.standard_normal((seeds, samples, 4)))
        hits = rng.binomial(there, share)
        found.append(np.stack([hits, hits + rng.binomial(30, (1 - share) / 2), there], axis=-1))
    return found[0], found[1]


def mean_iou(records: np.ndarray) -> float:
    """Return the mean over classes of pixels found by pixels said or there, of records N, classes, 3."""
    hits, said, there = records.sum(0).T
    used = said + there > 0
    return float(np.mean(hits[used] / (said + there - hits)[used]))


def ranked_labels(
    seeds: int,
    samples: int,
    *,
    effect: float,
    seed_sd: float,
    taste_sd: float,
    rng: np.random.Generator,
    quality: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Simulate shares of four labels, which half to a twelfth of the samples have, by two arms on the same samples.

    Arguments as for `confusions`; a training's quality is how far apart it holds samples with and without a label.

    Returns:
        Records of both arms, S, N, 2, 4: shares and labels.
    """
    labels = (rng.random((samples, 4)) < (0.5, 0.3, 0.15, 0.08)).astype(np.float32)
    difficulty = rng.standard_normal((samples, 4))
    found = []
    for level in (1.5, 1.5 + effect):
        taste = difficulty + taste_sd * rng.standard_normal((samples, 4))
        drawn = seed_sd * rng.standard_normal(seeds) if quality is None else quality
        apart = (level + drawn)[:, None, None] * (labels - 0.5)
        shares = special.expit(apart + taste + 0.5 * rng.standard_normal((seeds, samples, 4)))
        found.append(np.stack([shares, np.broadcast_to(labels, shares.shape)], axis=2).astype(np.float32))
    return found[0], found[1]


def true_difference(
    simulated: Simulated,
    statistic: Callable[[np.ndarray], float],
    *,
    seed_sd: float,
    rounds: int = 10,
    **model: Any,
) -> float:
    """Return the difference of a statistic over all trainings and all samples, nearly.

    Args:
        simulated: `confusions` or `ranked_labels`.
        statistic: of a training's records.
        seed_sd: of a training's quality.
        rounds: of 20,000 samples each, which together stand for all.
        model: what else the simulation takes.
    """
    quality = seed_sd * special.ndtri((np.arange(9) + 0.5) / 9)  # equally likely ones
    quality *= seed_sd / quality.std() if seed_sd else 1.0
    found = []
    for number in range(rounds):
        rng = np.random.default_rng(number)
        arms = simulated(len(quality), 20_000, seed_sd=seed_sd, quality=quality, rng=rng, **model)
        first, second = (np.mean([statistic(records) for records in arm]) for arm in arms)
        found.append(second - first)
    return float(np.mean(found))
