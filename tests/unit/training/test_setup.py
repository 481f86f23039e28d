import numpy as np
import pytest

from saccade.training.setup import _statistics


@pytest.mark.parametrize("shape", [(30, 8, 8, 3), (1, 5, 7, 3), (40, 4, 4, 1), (20_001, 2, 2, 3)])
def test_mean_and_deviation_are_those_of_the_numbers(shape):
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    images[..., 0] //= 3
    taken = images[:: max(len(images) // 10_000, 1)] / 255
    mean, std = _statistics(images)
    np.testing.assert_allclose(mean, taken.mean((0, 1, 2)), atol=5.1e-5)
    np.testing.assert_allclose(std, taken.std((0, 1, 2)), atol=5.1e-5)


def test_images_of_one_colour_have_a_deviation_to_divide_by():
    assert _statistics(np.full((3, 4, 4, 1), 51, dtype=np.uint8)) == ([0.2], [0.001])
