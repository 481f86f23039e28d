"""Statistics of predictions: accuracy with interval, per class, confusion, calibration."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..statistics.proportion import wilson


@dataclass(frozen=True)
class Answered:
    """Predictions for images, N each."""

    places: np.ndarray  # indices of the images in their source
    labels: np.ndarray  # the true classes
    predictions: np.ndarray  # the predicted classes
    confidence: np.ndarray  # probability of the predicted class
    loss: np.ndarray  # cross-entropy

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def correct(self) -> np.ndarray:
        """Whether predictions are correct, N bool."""
        return self.labels == self.predictions


class Score(NamedTuple):
    """Number of correct predictions, with the Wilson interval of accuracy."""

    name: str
    correct: int
    samples: int

    @property
    def share(self) -> float:
        """The accuracy."""
        return self.correct / self.samples if self.samples else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95% interval."""
        return wilson(self.correct, self.samples)


class Pair(NamedTuple):
    """A pair of confused classes."""

    true: int
    predicted: int
    samples: int
    of: int


class Bin(NamedTuple):
    """A confidence bin."""

    confidence: float
    correct: int
    samples: int


def class_scores(answered: Answered, classes: Sequence[str]) -> list[Score]:
    """Return every class' score, in the order of the classes."""
    counts = np.bincount(answered.labels, minlength=len(classes))
    correct = np.bincount(answered.labels[answered.correct], minlength=len(classes))
    return [Score(name, int(correct[i]), int(counts[i])) for i, name in enumerate(classes)]


def confusion(answered: Answered, num_classes: int) -> np.ndarray:
    """Return the confusion matrix: true class (row), predicted class (column)."""
    flat = np.bincount(answered.labels * num_classes + answered.predictions, minlength=num_classes**2)
    return flat.reshape(num_classes, num_classes)


def confused_pairs(answered: Answered, *, most: int) -> list[Pair]:
    """Return the most frequently confused pairs of classes."""
    wrong = ~answered.correct
    pairs, counts = np.unique(
        np.stack([answered.labels[wrong], answered.predictions[wrong]], 1), axis=0, return_counts=True
    )
    totals = np.bincount(answered.labels)
    order = np.argsort(-counts, kind="stable")[:most]
    return [Pair(int(pairs[i, 0]), int(pairs[i, 1]), int(counts[i]), int(totals[pairs[i, 0]])) for i in order]


def calibration(answered: Answered, *, bins: int = 10) -> tuple[list[Bin], float]:
    """Return non-empty confidence bins and the calibration error of finite predictions."""
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
    """Return each confidence's bin, N, of bins of equal width; 0 for NaN."""
    return np.minimum(np.where(np.isfinite(confidence), confidence, 0) * bins, bins - 1).astype(np.int64)
