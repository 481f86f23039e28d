import numpy as np
import pytest

from saccade.evaluation.classes.measures import (
    by_class,
    expected_calibration_error,
    image_scores,
    matthews,
    mean_class_accuracy,
    read_answers,
    reliability,
    set_statistics,
)
from saccade.statistics.bootstrap import mean_of, over_all


def answers_of(shares, labels):
    shares = np.asarray(shares, dtype=float)
    return read_answers(np.log(np.maximum(shares, 1e-12)), np.eye(shares.shape[1], dtype=bool)[labels])


def test_numbers_of_a_worked_example():
    found = answers_of([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.9, 0.1]], [0, 1, 1, 0])
    assert found.correct.tolist() == [1, 0, 1, 1]
    assert found.confidence == pytest.approx([0.8, 0.6, 0.7, 0.9])
    assert found.nll == pytest.approx(-np.log([0.8, 0.4, 0.7, 0.9]))
    assert found.brier == pytest.approx([0.08, 0.72, 0.18, 0.02])
    values = over_all(set_statistics(found), 4)
    assert values["mean_class"] == pytest.approx((1 + 0.5) / 2)
    # every answer is in a bin of its own: mean of |confidence - right|
    assert values["ece"] == pytest.approx((0.2 + 0.6 + 0.3 + 0.1) / 4)
    # two classes: (tp tn - fp fn) / sqrt((tp+fp)(tp+fn)(tn+fp)(tn+fn)) with tp=1, tn=2, fp=0, fn=1
    assert values["mcc"] == pytest.approx(2 / np.sqrt(1 * 2 * 2 * 3))
    assert "top5" not in image_scores(found)


def test_top5_counts_a_right_class_among_five():
    logits = np.tile(np.arange(7.0), (3, 1))
    found = read_answers(logits, np.eye(7, dtype=bool)[[6, 2, 1]])
    assert image_scores(found)["top1"].tolist() == [1, 0, 0]
    assert image_scores(found)["top5"].tolist() == [1, 1, 0]


def test_statistics_over_repeated_images_equal_those_of_the_repeated_set():
    random = np.random.default_rng(0)
    shares = random.dirichlet(np.ones(4), 30)
    labels = random.integers(4, size=30)
    found = answers_of(shares, labels)
    drawn = random.integers(30, size=30)
    weights = np.bincount(drawn, minlength=30)[None].astype(np.float32)
    repeated = answers_of(shares[drawn], labels[drawn])
    once = np.ones((1, 30))
    for make in (expected_calibration_error, mean_class_accuracy, matthews):
        assert make(found)(weights)[0] == pytest.approx(make(repeated)(once)[0], rel=1e-5)
    assert mean_of(found.nll)(weights)[0] == pytest.approx(repeated.nll.mean(), rel=1e-5)


def test_several_right_classes_leave_out_what_needs_one():
    valid = np.array([[True, True, False], [False, False, True]])
    found = read_answers(np.log([[0.2, 0.7, 0.1], [0.5, 0.3, 0.2]]), valid)
    assert found.correct.tolist() == [1, 0]
    assert found.nll == pytest.approx(-np.log([0.9, 0.2]))
    assert set(set_statistics(found)) == {"ece"}
    assert "brier" not in image_scores(found)
    assert by_class(found, ["a", "b", "c"]) == []
    assert sum(b.correct for b in reliability(found)) == 1


def test_matthews_of_one_answer_for_all_is_zero():
    found = answers_of([[0.9, 0.1]] * 6, [0, 0, 0, 1, 1, 1])
    assert over_all({"mcc": matthews(found)}, 6)["mcc"] == 0
