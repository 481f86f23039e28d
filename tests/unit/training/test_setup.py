import numpy as np
import pytest
import torch

from saccade.settings import ConfigError, flatten
from saccade.settings.decisions import Decision
from saccade.tasks.opening import open_samples
from saccade.training.facts import measure_scale
from saccade.training.optim import warmup_of
from saccade.training.recipes import configure
from saccade.training.resolve import resolve


@pytest.mark.parametrize("shape", [(30, 8, 8, 3), (1, 5, 7, 3), (40, 4, 4, 1), (20_001, 2, 2, 3)])
def test_mean_and_deviation_are_those_of_the_numbers(shape):
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    images[..., 0] //= 3
    taken = images[:: max(len(images) // 10_000, 1)] / 255
    mean, std = measure_scale(images)
    np.testing.assert_allclose(mean, taken.mean((0, 1, 2)), atol=5.1e-5)
    np.testing.assert_allclose(std, taken.std((0, 1, 2)), atol=5.1e-5)


def test_images_of_one_colour_have_a_deviation_to_divide_by():
    assert measure_scale(np.full((3, 4, 4, 1), 51, dtype=np.uint8)) == ([0.2], [0.001])


def test_a_mean_or_a_deviation_given_alone_is_kept():
    for given in ({"data.mean": [0.5]}, {"data.std": [0.25]}):
        config = configure("quick", {"engine.device": "cpu", **given})
        resolved, spec = resolve(config, *open_samples(None, config.data), torch.device("cpu"))
        wanted = given.get("data.mean", [0.2868]), given.get("data.std", [0.3543])  # else of the images
        assert (resolved.data.mean, resolved.data.std) == wanted
        assert (spec.mean, spec.std) == (resolved.data.mean, resolved.data.std)
    config = configure("quick", {"engine.device": "cpu", "data.mean": [0.5, 0.5, 0.5]})
    with pytest.raises(ConfigError, match="3 and 1 numbers, but the images have 1 channels"):
        resolve(config, *open_samples(None, config.data), torch.device("cpu"))


@pytest.mark.parametrize(
    ("given", "resolved", "steps"),
    [
        ({"schedule.epochs": 5}, {"schedule.warmup": 0.2 * 5}, 15),
        ({"schedule.epochs": 5, "schedule.warmup": 3}, {"schedule.warmup": 1.0}, 15),
        ({"schedule.epochs": 30, "schedule.warmup": 3}, {"schedule.warmup": 3}, 45),
        ({"schedule.epochs": 5, "schedule.warmup_steps": 40}, {"schedule.warmup_steps": 15}, 15),
        ({"schedule.epochs": 5, "schedule.warmup_share": 0.5}, {"schedule.warmup_share": 0.5}, 38),
    ],
)
def test_the_warm_up_is_that_of_the_resolved_settings(given, resolved, steps):
    config = configure("small", {"engine.device": "cpu", "data.train_limit": 960, "optim.batch_size": 64, **given})
    record: list[Decision] = []
    found, spec = resolve(config, *open_samples(None, config.data), torch.device("cpu"), given=given, record=record)
    assert {name: flatten(found)[name] for name in resolved} == resolved
    assert warmup_of(found.schedule, 15) == steps
    own = {name: flatten(config)[name] for name in resolved}
    cut = [one.setting for one in record if one.rule == "short-warm-up"]
    assert cut == [name for name, value in resolved.items() if value != own[name]]
    said = [note for note in spec.notes if "at most a fifth" in note]
    assert len(said) == sum(name in given for name in cut)
    assert all("schedule.warmup_share" in note for note in said)
    again, _ = resolve(found, *open_samples(None, found.data), torch.device("cpu"), resumed=True)
    assert again.schedule == found.schedule
