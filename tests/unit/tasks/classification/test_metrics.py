import numpy as np
import pytest
import torch

from saccade.tasks.classification.metrics import ClassificationMetrics, calibration_error, scores_of_predictions


def test_accuracy_is_the_share_of_predictions_that_are_kept_as_correct() -> None:
    logits = torch.randn(4000, 10, generator=torch.Generator().manual_seed(0)).bfloat16().float()  # many are equal
    assert (logits.topk(2, dim=1).values.diff(dim=1) == 0).sum() > 10
    metrics = ClassificationMetrics(None)
    metrics.update({"output": logits}, {"target": torch.arange(4000) % 10, "place": torch.arange(4000)})
    kept, found = metrics.predictions(), metrics.compute()
    assert found["top1"] == kept["correct"].double().mean().item()
    assert torch.equal(kept["prediction"], logits.argmax(1))
    assert found["top5"] >= found["top1"]


def test_samples_of_several_processes_come_together_in_the_order_of_their_places() -> None:
    logits, labels = torch.randn(9, 3), torch.arange(9) % 3
    whole, first, second = (ClassificationMetrics(None) for _ in range(3))
    whole.update({"output": logits}, {"target": labels, "place": torch.arange(9)})
    first.update({"output": logits[::2]}, {"target": labels[::2], "place": torch.arange(9)[::2]})
    second.update({"output": logits[1::2]}, {"target": labels[1::2], "place": torch.arange(9)[1::2]})
    whole.join([whole.state()])
    first.join([first.state(), second.state(), {}])
    assert first.columns["place"].tolist() == list(range(9))
    assert first.compute() == whole.compute()


def test_calibration_error_is_the_mean_gap_of_confidence_and_accuracy_over_bins():
    right = np.array([1, 1, 0, 0, 1, 1, 1, 1, 1, 0], float)
    confidence = np.array([0.99] * 5 + [0.51] * 5)
    expected = 0.5 * abs(0.99 - 0.6) + 0.5 * abs(0.51 - 0.8)
    assert calibration_error(np.stack([confidence, right], 1)) == pytest.approx(expected)
    kept = {"place": np.arange(10), "label": np.zeros(10, int), "correct": right, "confidence": confidence}
    logits = np.tile(np.arange(7.0)[::-1], (10, 1))
    logits[3, 0] = -1.0  # the right class comes last
    found = scores_of_predictions({**kept, "logits": logits})
    assert found["top5"].tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1, 1]
    assert calibration_error(found["ece"]) == pytest.approx(expected, abs=1e-6)


def test_a_label_is_among_five_by_logits_and_of_equal_ones_by_its_place() -> None:
    logits = torch.tensor([[1.0, 1, 1, 1, 1, 1, 0], [9.0, 8, 7, 6, 5, 4, 3], [float("nan")] * 7])
    for label, expected in ((0, [1, 1, 0]), (4, [1, 1, 0]), (5, [0, 0, 0])):
        metrics = ClassificationMetrics(None)
        metrics.update({"output": logits}, {"target": torch.full((3,), label), "place": torch.arange(3)})
        assert metrics.scores()["top5"].tolist() == expected
        assert metrics.compute()["top5"] == sum(expected) / 3


def test_what_is_summed_up_batch_by_batch_is_what_is_kept() -> None:
    logits, labels = torch.randn(50, 8, generator=torch.Generator().manual_seed(1)), torch.arange(50) % 8
    apart, whole = ClassificationMetrics(None), ClassificationMetrics(None)
    for part in (slice(30, 50), slice(0, 30)):
        apart.update({"output": logits[part]}, {"target": labels[part], "place": torch.arange(50)[part]})
    whole.update({"output": logits}, {"target": labels, "place": torch.arange(50)})
    before = apart.compute()
    assert torch.equal(apart.columns["logits"], logits)
    for found in (apart, whole):
        assert before == pytest.approx(found.compute())
