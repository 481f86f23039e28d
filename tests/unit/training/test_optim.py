import pytest
import torch
from torch import nn

from saccade.settings import ConfigError, OptimConfig
from saccade.settings.machine_rules import CAPTURABLE
from saccade.tasks import Classify
from saccade.training.optim import build_optimizer


def build(**settings):
    task = Classify(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)))
    return build_optimizer(task, OptimConfig(**settings), device=torch.device("cpu"))


def test_an_unknown_optimizer_is_answered_with_near_names():
    with pytest.raises(ConfigError, match=r"'adamww' is not an optimizer of timm; did you mean .*adamw"):
        build(name="adamww")


@pytest.mark.parametrize(
    "settings", [{"lr_batch": -128}, {"betas": [0.9, 1.0]}, {"eps": -1.0}, {"name": "sgd", "momentum": -1.0}]
)
def test_a_known_optimizer_is_not_called_unknown_for_its_numbers(settings):
    with pytest.raises(ConfigError, match=f"^optim.{list(settings)[-1]} = .* was given; it must be"):
        build(**settings)


@pytest.mark.parametrize(("name", "betas"), [("adamw", [0.9, 0.99, 0.999]), ("adan", [0.9, 0.99])])
def test_another_number_of_betas_than_the_optimizer_has_is_refused(name, betas):
    with pytest.raises(ConfigError, match=f"{name} takes {5 - len(betas)} values"):
        build(name=name, betas=betas)


def test_the_right_number_of_betas_reaches_the_optimizer():
    assert build(name="adan", betas=[0.9, 0.8, 0.7]).param_groups[0]["betas"] == (0.9, 0.8, 0.7)
    assert build(betas=[0.5, 0.6]).param_groups[0]["betas"] == (0.5, 0.6)


def test_an_optimizer_that_would_fail_at_its_first_step_is_refused():
    with pytest.raises(ConfigError, match="second derivatives"):
        build(name="adahessian")


@pytest.mark.parametrize("name", ["bnbadamw", "fusedadamw"])
def test_an_optimizer_that_cannot_be_made_says_why(name):
    if torch.cuda.is_available():
        pytest.skip("depends on what is installed")
    with pytest.raises(ConfigError, match=r"cannot create the optimizer .* with lr="):
        build(name=name)


def test_lookahead_is_taken_around_any_optimizer():
    assert "Lookahead" in type(build(name="lookahead_adamw")).__name__


@pytest.mark.parametrize("name", CAPTURABLE)
def test_what_is_said_to_be_capturable_is_told_so(name):
    task = Classify(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)))
    made = build_optimizer(task, OptimConfig(name=name), device=torch.device("cpu"), capturable=True)
    assert all(group["capturable"] and isinstance(group["lr"], torch.Tensor) for group in made.param_groups)
