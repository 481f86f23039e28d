import numpy as np
import pytest

from saccade.report.tally import Answered, calibration, class_scores, confused_pairs, confusion


def answered(labels, predictions, confidence=None):
    count = len(labels)
    confidence = np.full(count, 0.5) if confidence is None else np.array(confidence)
    return Answered(np.arange(count), np.array(labels), np.array(predictions), confidence, np.zeros(count))


def test_scores_count_every_class_even_one_without_images():
    scores = class_scores(answered([0, 0, 0, 2], [0, 1, 0, 2]), ["a", "b", "c"])
    assert [(score.name, score.correct, score.samples) for score in scores] == [("a", 2, 3), ("b", 0, 0), ("c", 1, 1)]
    assert scores[0].share == pytest.approx(2 / 3)
    assert scores[1].interval == (0, 1)


def test_confusions_are_counted_by_true_class_and_answer():
    given = answered([0, 0, 0, 1, 2, 2], [1, 1, 0, 1, 0, 2])
    assert confusion(given, 3).tolist() == [[1, 2, 0], [0, 1, 0], [1, 0, 1]]
    assert confused_pairs(given, most=5) == [(0, 1, 2, 3), (2, 0, 1, 2)]
    assert confused_pairs(given, most=1) == [(0, 1, 2, 3)]


def test_calibration_error_is_the_weighted_distance_of_confidence_and_accuracy():
    given = answered([0, 0, 0, 0], [0, 1, 0, 0], [0.95, 0.95, 1.0, 0.15])
    bins, error = calibration(given)
    assert [(found.correct, found.samples) for found in bins] == [(1, 1), (2, 3)]
    assert error == pytest.approx((0.85 * 1 + abs(2.9 / 3 - 2 / 3) * 3) / 4)


def test_answers_that_are_no_numbers_are_left_out_of_calibration():
    bins, error = calibration(answered([0, 0], [0, 1], [np.nan, 0.75]))
    assert [(found.correct, found.samples) for found in bins] == [(0, 1)]
    assert error == pytest.approx(0.75)
    assert calibration(answered([0], [0], [np.nan])) == ([], 0)
