import torch

from saccade.tasks.classification.metrics import ClassificationMetrics


def test_accuracy_is_the_share_of_predictions_that_are_kept_as_correct() -> None:
    logits = torch.randn(4000, 10, generator=torch.Generator().manual_seed(0)).bfloat16().float()  # many are equal
    assert (logits.topk(2, dim=1).values.diff(dim=1) == 0).sum() > 10
    metrics = ClassificationMetrics(10)
    metrics.update({"output": logits}, {"target": torch.arange(4000) % 10, "place": torch.arange(4000)})
    kept, found = metrics.predictions(), metrics.compute()
    assert found["top1"] == kept["correct"].double().mean().item()
    assert torch.equal(kept["prediction"], logits.argmax(1))
    assert found["top5"] >= found["top1"]


def test_samples_of_several_processes_come_together_in_the_order_of_their_places() -> None:
    logits, labels = torch.randn(9, 3), torch.arange(9) % 3
    whole, first, second = (ClassificationMetrics(3) for _ in range(3))
    whole.update({"output": logits}, {"target": labels, "place": torch.arange(9)})
    first.update({"output": logits[::2]}, {"target": labels[::2], "place": torch.arange(9)[::2]})
    second.update({"output": logits[1::2]}, {"target": labels[1::2], "place": torch.arange(9)[1::2]})
    whole.join([whole.state()])
    first.join([first.state(), second.state(), {}])
    assert first.columns["place"].tolist() == list(range(9))
    assert first.compute() == whole.compute()
