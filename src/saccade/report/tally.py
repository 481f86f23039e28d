"""Counts of a classifier's answers: accuracy with its interval, by class, confusions, calibration."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..statistics.proportion import wilson


@dataclass(frozen=True)
class Answered:
    """What a model said to images, N each."""

    places: np.ndarray  # of the images in their source
    labels: np.ndarray  # the true classes
    predictions: np.ndarray  # the classes answered
    confidence: np.ndarray  # share of the class answered
    loss: np.ndarray  # cross-entropy

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def correct(self) -> np.ndarray:
        """Which answers are right, N bool."""
        return self.labels == self.predictions


class Score(NamedTuple):
    """Right answers out of images, with the Wilson interval of their share."""

    name: str
    correct: int
    samples: int

    @property
    def share(self) -> float:
        """The share of right answers."""
        return self.correct / self.samples if self.samples else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95% interval."""
        return wilson(self.correct, self.samples)


class Pair(NamedTuple):
    """A class taken for another."""

    true: int
    predicted: int
    samples: int
    of: int


class Bin(NamedTuple):
    """Answers of about one confidence."""

    confidence: float
    correct: int
    samples: int


def class_scores(answered: Answered, classes: Sequence[str]) -> list[Score]:
    """Return every class' score, in the order of the classes."""
    counts = np.bincount(answered.labels, minlength=len(classes))
    correct = np.bincount(answered.labels[answered.correct], minlength=len(classes))
    return [Score(name, int(correct[i]), int(counts[i])) for i, name in enumerate(classes)]


def confusion(answered: Answered, num_classes: int) -> np.ndarray:
    """Return how often a true class (row) was answered by a class (column)."""
    flat = np.bincount(answered.labels * num_classes + answered.predictions, minlength=num_classes**2)
    return flat.reshape(num_classes, num_classes)


def confused_pairs(answered: Answered, *, most: int) -> list[Pair]:
    """Return the pairs of classes confused most often, the most frequent first."""
    wrong = ~answered.correct
    pairs, counts = np.unique(
        np.stack([answered.labels[wrong], answered.predictions[wrong]], 1), axis=0, return_counts=True
    )
    totals = np.bincount(answered.labels)
    order = np.argsort(-counts, kind="stable")[:most]
    return [Pair(int(pairs[i, 0]), int(pairs[i, 1]), int(counts[i]), int(totals[pairs[i, 0]])) for i in order]


def calibration(answered: Answered, *, bins: int = 10) -> tuple[list[Bin], float]:
    """Return answers in bins of confidence, empty ones left out, and the calibration error, of finite answers alone."""
    number, sound = confidence_bin(answered.confidence, bins), np.isfinite(answered.confidence)
    found, error = [], 0.0
    for index in range(bins):
        inside = (number == index) & sound
        count, correct = int(inside.sum()), int(answered.correct[inside].sum())
        if count:
            confidence = float(answered.confidence[inside].mean())
            found.append(Bin(confidence, correct, count))
            error += abs(confidence - correct / count) * count / int(sound.sum())
    return found, error


def confidence_bin(confidence: np.ndarray, bins: int) -> np.ndarray:
    """Return the number of each confidence's bin, N, of so many of equal width; 0 for what is no number."""
    return np.minimum(np.where(np.isfinite(confidence), confidence, 0) * bins, bins - 1).astype(np.int64)
