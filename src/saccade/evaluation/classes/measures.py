"""Accuracy and calibration of classifiers, also over resamples of images."""

from dataclasses import dataclass

import numpy as np

from ...report.tally import Answered, Bin, Score, calibration, class_scores, confidence_bin
from ...statistics.bootstrap import Statistic, group_mean, one_hot

BINS = 15
ROWS = 4096  # images whose probabilities are in memory at a time


@dataclass(frozen=True)
class Answers:
    """Predictions for images, in the order of their indices."""

    valid: np.ndarray  # right classes, N, K bool; one or several an image
    prediction: np.ndarray  # predicted class
    confidence: np.ndarray  # probability of the predicted class
    nll: np.ndarray  # minus the log probability of the right classes
    brier: np.ndarray  # Brier score; with several right classes, the lowest
    top5: np.ndarray  # whether a right class is among the five most probable
    single: bool  # whether each image has one right class

    @property
    def correct(self) -> np.ndarray:
        """Whether predictions are right, N, 0 or 1."""
        return self.valid[np.arange(len(self.valid)), self.prediction].astype(np.float64)

    @property
    def labels(self) -> np.ndarray:
        """The right class of each image, if there is only one."""
        return self.valid.argmax(1)

    def answered(self) -> Answered:
        """Return predictions and labels for charts; with several right classes, the predicted one if it is right."""
        labels = self.labels if self.single else np.where(self.correct > 0, self.prediction, self.labels)
        return Answered(np.arange(len(labels)), labels, self.prediction, self.confidence, self.nll)


def read_answers(logits: np.ndarray, valid: np.ndarray) -> Answers:
    """Return the predictions of logits, N, K, for images with right classes `valid`, N, K bool."""
    blocks = range(0, max(len(logits), 1), ROWS)
    parts = [_read_block(logits[begin : begin + ROWS], valid[begin : begin + ROWS]) for begin in blocks]
    prediction, confidence, nll, brier, top5 = (np.concatenate(values) for values in zip(*parts, strict=True))
    single = bool((valid.sum(1) == 1).all())
    return Answers(valid, prediction, confidence, nll, brier, top5, single)


def _read_block(logits: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return prediction, confidence, nll, brier and top5 of some images."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    shares = np.exp(logs)
    nll = -np.logaddexp.reduce(np.where(valid, logs, -np.inf), axis=1)
    # |p - onehot|^2 = |p|^2 - 2 p_label + 1, smallest for the most probable right class
    brier = (shares**2).sum(1) - 2 * np.where(valid, shares, -1).max(1) + 1
    top = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    top5 = np.asarray(np.take_along_axis(valid, top, 1).any(1), dtype=np.float64)
    return logits.argmax(1), shares.max(1), nll, brier, top5


def image_scores(answers: Answers) -> dict[str, np.ndarray]:
    """Return the metrics that are means over images, N each: top1, top5 (for more than five classes), nll, brier."""
    found = {"top1": answers.correct, "nll": answers.nll}
    if answers.valid.shape[1] > 5:
        found["top5"] = answers.top5
    if answers.single:
        found["brier"] = answers.brier
    return found


def set_statistics(answers: Answers) -> dict[str, Statistic]:
    """Return the metrics that are not means over images: ece and, with one right class, mean_class and mcc."""
    found: dict[str, Statistic] = {"ece": expected_calibration_error(answers)}
    if answers.single:
        found["mean_class"] = mean_class_accuracy(answers)
        found["mcc"] = matthews(answers)
    return found


def expected_calibration_error(answers: Answers) -> Statistic:
    """Expected calibration error over bins of equal width, as a statistic."""
    number = confidence_bin(answers.confidence, BINS)
    gaps = np.zeros((len(number), BINS))
    gaps[np.arange(len(number)), number] = answers.confidence - answers.correct
    return lambda weights: np.abs(weights @ gaps).sum(1) / len(number)


def mean_class_accuracy(answers: Answers) -> Statistic:
    """Mean accuracy over classes with images, as a statistic."""
    return group_mean(answers.correct, answers.labels)


def matthews(answers: Answers) -> Statistic:
    """Matthews correlation coefficient (Gorodkin's multi-class form), as a statistic."""
    classes = answers.valid.shape[1]
    labels, predictions = one_hot(answers.labels, classes), one_hot(answers.prediction, classes)

    def statistic(weights: np.ndarray) -> np.ndarray:
        true, predicted = np.asarray(weights @ labels), np.asarray(weights @ predictions)
        total, correct = true.sum(1), weights @ answers.correct
        above = correct * total - (true * predicted).sum(1)
        below = np.sqrt((total**2 - (true**2).sum(1)) * (total**2 - (predicted**2).sum(1)))
        return np.divide(above, below, out=np.zeros_like(above), where=below > 0)

    return statistic


def reliability(answers: Answers) -> list[Bin]:
    """Return the non-empty of 15 confidence bins."""
    return calibration(answers.answered(), bins=BINS)[0]


def by_class(answers: Answers, classes: list[str]) -> list[Score]:
    """Return every class' score; empty if images have several right classes."""
    return class_scores(answers.answered(), classes) if answers.single else []
