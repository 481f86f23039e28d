import pytest
import torch
from torch import nn

from saccade.settings import ConfigError, TrainConfig
from saccade.training.loop import Loop
from saccade.training.parallel import (
    Alone,
    _has_unused_parameters,
    fill,
    full_state_dict,
    join_world,
    local_device,
    piece_of,
)


class Branches(nn.Module):
    """Uses one of two layers, or both; counts its calls in a buffer and draws noise."""

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.first, self.second, self.both = nn.Linear(2, 1), nn.Linear(2, 1), both
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x):
        x = self.norm(x) + torch.rand_like(x)
        return self.first(x).sum() + (self.second(x).sum() if self.both else 0)


@pytest.mark.parametrize("both", [True, False])
def test_parameters_without_gradient_are_found_and_nothing_is_changed_by_looking(both):
    task = Branches(both)
    before = {name: value.clone() for name, value in task.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    unused = _has_unused_parameters(task, lambda module: module(torch.randn(6, 2)).backward(), torch.device("cpu"))
    assert unused == (not both)
    assert torch.equal(torch.rand(4), expected)
    assert all(torch.equal(value, before[name]) for name, value in task.state_dict().items())
    assert all(p.grad is None for p in task.parameters())


def test_frozen_parameters_do_not_count_as_unused():
    task = Branches(both=False)
    task.second.requires_grad_(False)
    assert not _has_unused_parameters(task, lambda module: module(torch.randn(6, 2)).backward(), torch.device("cpu"))


def test_run_of_one_process_agrees_with_itself(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with join_world(torch.device("cpu")) as world:
        assert (world.rank, world.size, world.is_main) == (0, 1, True)
        assert world.any_of(True, False, True) == [True, False, True]
        assert world.any_rank(True)
        assert not world.any_rank(False)
        assert world.gather("mine") == ["mine"]
        assert torch.equal(world.total(torch.ones(2)), torch.ones(2))


def test_plain_tensor_is_its_own_only_piece():
    tensor = torch.arange(6.0).view(3, 2)
    local, shape, begin = piece_of(tensor)
    assert local is tensor
    assert (shape, begin) == ((3, 2), 0)
    fill(tensor, torch.ones(3, 2))
    assert torch.equal(tensor, torch.ones(3, 2))


def test_state_of_a_plain_module_is_whole_already():
    module = nn.Linear(2, 1)
    found = full_state_dict(module)
    assert found.keys() == {"weight", "bias"}
    assert torch.equal(found["weight"], module.weight)
    assert not found["weight"].requires_grad


@pytest.mark.parametrize(("batch", "length", "allowed"), [(8, 100, True), (7, 100, False), (64, 6, False)])
def test_every_process_must_get_a_pair(batch, length, allowed):
    loop = Loop.__new__(Loop)
    loop.config, loop.world = TrainConfig(), Alone()
    loop.config.optim.batch_size, loop.world.size = batch, 4
    loop.feed = type("Feed", (), {"order": type("Order", (), {"length": length})})
    if allowed:
        assert loop._batch_size() == batch
    else:
        with pytest.raises(ConfigError, match=r"for 4 processes; .* give optim.batch_size = 8 or more"):
            loop._batch_size()


def test_unknown_device_is_refused_in_words():
    with pytest.raises(ValueError, match="choose cpu, cuda"):
        local_device("gpu0")
    assert local_device("cpu") == torch.device("cpu")
