import numpy as np
import pytest
import torch

from saccade.settings import ConfigError
from saccade.tasks.opening import open_samples
from saccade.training.facts import measure_scale
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
