import json
import warnings

import pytest
import torch
from torch import nn

from saccade.settings import ConfigError, OptimConfig
from saccade.tasks import Classify
from saccade.training.optim import build_optimizer, set_rate
from saccade.training.optimizer_state import check_storable, group_settings, load_optimizer_state, optimizer_state

CPU = torch.device("cpu")
CONFIG = {"lr": 1e-2}


def task() -> Classify:
    torch.manual_seed(0)
    return Classify(nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(216, 4)))


def optimizer_of(model: Classify, name: str) -> torch.optim.Optimizer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some optimizers of timm tell of what they are
        return build_optimizer(model, OptimConfig(name=name, **CONFIG), device=CPU)


def walk(model: Classify, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        torch.manual_seed(100 + step)
        images, labels = torch.randn(8, 3, 8, 8), torch.randint(0, 4, (8,))
        set_rate(optimizer, 1e-2 / (step + 1))
        optimizer.zero_grad()
        model(images, labels)["loss"].backward()
        optimizer.step()


def names_of(model: nn.Module) -> dict[int, str]:
    return {id(p): name for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    "name",
    [
        "adamw",
        "sgd",
        "lamb",
        "adan",
        "lookahead_adamw",
        "adafactor",
        "nadamw",
        "lion",
        "madgrad",
        "rmsproptf",
        "adopt",
        "muon",
        "nmuon",
    ],
)
def test_an_optimizer_goes_on_as_if_it_had_never_stopped(name: str) -> None:
    whole = task()
    walk(whole, optimizer_of(whole, name), range(9))

    first = task()
    stopped = optimizer_of(first, name)
    begun = group_settings(stopped)
    walk(first, stopped, range(7))
    tensors, memory = optimizer_state(stopped, names_of(first), begun)
    tensors = {key: value.detach().clone() for key, value in tensors.items()}

    second = task()
    second.load_state_dict(first.state_dict())
    resumed = optimizer_of(second, name)
    load_optimizer_state(resumed, names_of(second), tensors, json.loads(json.dumps(memory)), counts_on=None)
    walk(second, resumed, range(7, 9))
    for got, want in zip(second.parameters(), whole.parameters(), strict=True):
        assert torch.equal(got, want)


def test_settings_of_the_optimizer_that_steps_do_not_change_are_not_kept() -> None:
    model = task()
    optimizer = optimizer_of(model, "adamw")
    begun = group_settings(optimizer)
    walk(model, optimizer, range(2))
    assert optimizer_state(optimizer, names_of(model), begun)[1]["groups"] == [{} for _ in optimizer.param_groups]


def test_an_optimizer_with_draws_of_its_own_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"optim\.name=kron was given; this optimizer uses its own random number generator"
    ):
        check_storable(optimizer_of(task(), "kron"), "kron")


def test_lists_of_tensors_come_back_as_they_were() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    kept = {"pair": [torch.ones(3), (torch.zeros(2, 2), None)], "name": "x", "count": 3}
    optimizer.state[model.weight] = kept
    tensors, memory = optimizer_state(optimizer, names_of(model), group_settings(optimizer))
    other = torch.optim.SGD(model.parameters())
    load_optimizer_state(other, names_of(model), tensors, json.loads(json.dumps(memory)), counts_on=None)
    found = other.state[model.weight]
    assert found["name"] == "x"
    assert found["count"] == 3
    assert torch.equal(found["pair"][0], torch.ones(3))
    assert isinstance(found["pair"][1], tuple)
    assert torch.equal(found["pair"][1][0], torch.zeros(2, 2))


def test_what_cannot_be_stored_is_refused() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.state[model.weight] = {"odd": object()}
    with pytest.raises(ConfigError, match=r"state 0\.weight\.odd is of type object"):
        optimizer_state(optimizer, names_of(model), group_settings(optimizer))
