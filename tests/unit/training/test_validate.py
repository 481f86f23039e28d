import torch

from saccade.training.validate import Answers


def test_accuracy_is_the_share_of_predictions_that_are_kept_as_correct() -> None:
    logits = torch.randn(4000, 10, generator=torch.Generator().manual_seed(0)).bfloat16().float()  # many are equal
    assert (logits.topk(2, dim=1).values.diff(dim=1) == 0).sum() > 10
    answers = Answers(logits, torch.arange(4000) % 10, torch.arange(4000))
    kept = answers.tensors()
    assert answers.metrics()["val_top1"] == kept["correct"].double().mean().item()
    assert torch.equal(kept["prediction"], logits.argmax(1))
    assert answers.metrics()["val_top5"] >= answers.metrics()["val_top1"]
