from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from saccade.tasks import Classify, Task
from saccade.tasks.classification.task import classification_loss


class Fixed(nn.Module):
    """Answers with the same thing whatever it is shown."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, images):
        return self.answer


IMAGES = torch.zeros(4, 3, 8, 8)
LOGITS = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
HARD = torch.tensor([0, 4, 2, 2])


def test_loss_is_the_cross_entropy_of_the_models_answer():
    result = Classify(Fixed(LOGITS))(IMAGES, HARD)
    wanted = -LOGITS.log_softmax(-1)[torch.arange(4), HARD].mean()
    torch.testing.assert_close(result["loss"], wanted)
    torch.testing.assert_close(result["classification"], wanted)
    assert result["output"] is LOGITS


def test_without_targets_it_only_answers():
    assert Classify(Fixed(LOGITS))(IMAGES).keys() == {"output"}


def test_shares_of_one_class_equal_its_index():
    task = Classify(Fixed(LOGITS), label_smoothing=0.1)
    one_hot = F.one_hot(HARD, 5)
    torch.testing.assert_close(task(IMAGES, one_hot.float())["loss"], task(IMAGES, HARD)["loss"])
    torch.testing.assert_close(task(IMAGES, one_hot.double())["loss"], task(IMAGES, HARD)["loss"])


def test_mixed_shares_give_the_mixed_loss():
    other = HARD.roll(1)
    mixed = 0.3 * F.one_hot(HARD, 5) + 0.7 * F.one_hot(other, 5)
    wanted = 0.3 * classification_loss(LOGITS, HARD) + 0.7 * classification_loss(LOGITS, other)
    torch.testing.assert_close(classification_loss(LOGITS, mixed), wanted)


def test_smoothing_spreads_its_share_over_all_classes():
    wanted = 0.8 * classification_loss(LOGITS, HARD) - 0.2 * LOGITS.log_softmax(-1).mean()
    torch.testing.assert_close(Classify(Fixed(LOGITS), label_smoothing=0.2)(IMAGES, HARD)["loss"], wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_loss_is_at_least_single_precision(dtype):
    loss = classification_loss(LOGITS.to(dtype), HARD)
    assert loss.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)


def test_gradient_reaches_the_model_and_parts_carry_none():
    task = Classify(nn.Sequential(nn.Flatten(), nn.Linear(192, 5)))
    result = task(torch.randn(4, 3, 8, 8), HARD)
    result["loss"].backward()
    assert all(p.grad.abs().sum() > 0 for p in task.parameters())
    assert not result["classification"].requires_grad


def test_an_answer_that_holds_logits_is_read():
    result = Classify(Fixed(SimpleNamespace(logits=LOGITS)))(IMAGES, HARD)
    assert result["output"] is LOGITS


def test_an_answer_without_logits_is_refused():
    with pytest.raises(TypeError, match=r"returned tuple; .* needs a tensor of logits"):
        Classify(Fixed((LOGITS, LOGITS)))(IMAGES, HARD)


def test_shares_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"shape \(4,\) .* logits of shape \(4, 5\)"):
        Classify(Fixed(LOGITS))(IMAGES, HARD.float())


def test_smoothing_outside_its_range_is_refused():
    with pytest.raises(ValueError, match=r"label_smoothing=1\.5 was given"):
        Classify(Fixed(LOGITS), label_smoothing=1.5)


def test_what_another_task_needs_is_refused():
    with pytest.raises(TypeError, match="was given pairs"):
        Classify(Fixed(LOGITS))(IMAGES, HARD, pairs=LOGITS)


def test_a_task_offers_what_the_loop_calls():
    task = Classify(Fixed(LOGITS))
    assert isinstance(task, Task)
    assert task.draw(4, device="cpu", generator=torch.Generator()) == {}
    task.set_epoch(3, 10)
    assert torch.equal(task(IMAGES, HARD, generator=torch.Generator())["output"], LOGITS)
