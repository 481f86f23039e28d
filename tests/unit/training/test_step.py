from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from saccade.kernels import Guard, table
from saccade.tasks import Classify
from saccade.tasks.auxiliary.around import Around
from saccade.training.step import Step
from saccade.training.train import train
from support.toy_kernels import BrokenLinear, row
from support.trainings import png_folder, records, settings, weights

WEIGHTS = torch.tensor([0.2, 1.0, 5.0])
VIT = {"embed_dim": 16, "depth": 1, "num_heads": 2, "patch_size": 4}


class TwoLosses(Around):
    """A classification with weights, and a loss that is a mean over images."""

    def loss(self, batch, **draws):
        result = self.base(batch, **draws)
        return {**result, "loss": result["loss"] + result["output"].square().mean()}


def gradient(task, loss):
    task.zero_grad()
    loss.backward()
    return task.model.weight.grad.clone()


@pytest.mark.parametrize("parts", [[slice(0, 6), slice(6, 10)], [slice(0, 2), slice(2, 3), slice(3, 10)]])
def test_losses_of_parts_add_up_to_that_of_the_batch_and_so_do_their_gradients(parts):
    task = TwoLosses(Classify(nn.Linear(4, 3), class_weights=WEIGHTS))
    images, targets = torch.randn(10, 4), torch.tensor([2, 2, 2, 0, 0, 1, 0, 1, 0, 0])
    whole = task(images, targets)["loss"]
    assert whole.item() == pytest.approx(
        (F.cross_entropy(task.model(images), targets, WEIGHTS) + task.model(images).square().mean()).item()
    )
    batches = [{"image": images[part], "target": targets[part]} for part in parts]
    mean = sum(task.weight_of(batch) for batch in batches) / 10
    losses, plain = [], []
    for batch in batches:
        result, share = task(batch), len(batch["target"]) / 10
        losses.append(share * task.reweigh(result, batch, mean)["loss"])
        plain.append(share * result["loss"])
    assert sum(losses).item() == pytest.approx(whole.item(), rel=1e-6)
    assert sum(plain).item() != pytest.approx(whole.item(), rel=1e-2)
    torch.testing.assert_close(gradient(task, sum(losses)), gradient(task, task(images, targets)["loss"]))


def test_nothing_is_weighed_without_weights_or_with_shares_of_classes():
    result, batch = {"loss": torch.tensor(1.0)}, {"target": torch.tensor([0, 2])}
    plain = Classify(nn.Linear(4, 3))
    assert plain.weight_of(batch) is None
    assert plain.reweigh(result, batch, None) is result
    weighted = Classify(nn.Linear(4, 3), class_weights=WEIGHTS)
    assert weighted.weight_of({"target": F.one_hot(batch["target"], 3).float()}) is None


def test_batch_in_parts_trains_as_a_whole_one_does_with_class_weights(tmp_path):
    data = png_folder(tmp_path / "data")
    plain = {"augment__mixup": 0.0, "augment__cutmix": 0.0, "model__drop_path": 0.0, "loss__smoothing": 0.0}
    model = {"model__name": "vit_tiny_patch16_224", "model__options": VIT, "schedule__epochs": 1}
    for parts in (1, 3):
        values = settings(**plain, **model, loss__class_weights=WEIGHTS.tolist(), optim__accumulate=parts)
        train(str(data), out=tmp_path / f"{parts}", settings=values, quiet=True)
    assert records(tmp_path / "3")[0]["train_loss"] == pytest.approx(records(tmp_path / "1")[0]["train_loss"], rel=1e-5)
    for name, value in weights(tmp_path / "3").items():
        torch.testing.assert_close(value, weights(tmp_path / "1")[name], rtol=1e-3, atol=1e-4)


def test_parts_of_a_batch_are_as_many_in_every_process():
    class Two:
        size = 2

    step = object.__new__(Step)
    step.world, step.global_batch_size = Two(), 6
    step.config = type("C", (), {"optim": type("O", (), {"accumulate": 2})})
    # three images each are one pair and a half: two processes with parts of three and of four agree on one part
    assert [len(step._chunks(length)) for length in (3, 4)] == [1, 1]
    step.global_batch_size = 8
    assert [len(step._chunks(length)) for length in (4, 5)] == [2, 2]


class Both:
    """Two processes, of which this is the first."""

    size, rank, is_main = 2, 0, True

    def __init__(self, other):
        self.other = other

    def gather(self, value):
        return [value, self.other]


@pytest.mark.parametrize("use", ["auto", "off"])
def test_an_error_where_weights_are_sharded_names_the_kernels_in_use(use, monkeypatch):
    monkeypatch.setattr(table, "KERNELS", (row(BrokenLinear),))
    monkeypatch.setattr(BrokenLinear, "after", 0)
    monkeypatch.setattr(BrokenLinear, "error", error := RuntimeError("no such instruction"))
    step, model = object.__new__(Step), nn.Sequential(nn.Linear(4, 3))
    step.sharded, step.world, step.guard = True, Both(""), Guard(model, "train", use)

    def run(batch, *, strong):
        if use == "off":
            raise error
        model(batch["image"])

    step._run_or_replay = run
    with pytest.raises(RuntimeError, match="no such instruction") as raised:
        step._train_step({"image": torch.randn(2, 4)}, strong=True)
    notes = getattr(raised.value, "__notes__", [])
    assert ["toy were in use" in note and "--kernels off" in note for note in notes] == [True] * (use == "auto")


@pytest.mark.parametrize(("own", "other"), [("no such instruction", ""), ("", "RuntimeError: there"), ("", "")])
def test_all_processes_leave_kernels_out_if_they_fail_in_one(own, other, monkeypatch):
    monkeypatch.setattr(table, "KERNELS", (row(BrokenLinear),))
    monkeypatch.setattr(BrokenLinear, "after", 0 if own else 1000)
    monkeypatch.setattr(BrokenLinear, "error", RuntimeError(own))
    step, renewed = object.__new__(Step), []
    step.task = Classify(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))
    step.device, step.dtype, step.world = torch.device("cpu"), torch.float32, Both(other)
    step.guard = Guard(step.task, "train", renew=lambda: renewed.append(True))
    before = {name: value.clone() for name, value in step.task.state_dict().items()}
    batch = {"image": torch.randn(6, 4), "target": torch.arange(6) % 3}
    fails = bool(own or other)
    with pytest.warns(UserWarning, match=own or other) if fails else nullcontext():
        step._drop_failing_kernels(batch, {})
    assert (step.guard.names, renewed) == (((), [True]) if fails else (("toy",), []))
    assert all(torch.equal(value, before[name]) for name, value in step.task.state_dict().items())
    assert all(p.grad is None for p in step.task.parameters())
