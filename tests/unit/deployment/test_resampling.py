"""Framing inside a graph gives the bytes that framing by Pillow gives."""

import numpy as np
import pytest
import torch

from saccade.data.spec import InputSpec
from saccade.deployment.resampling import frame

SIZES = [(1, 1), (2, 300), (300, 2), (24, 24), (24, 25), (25, 24), (27, 31), (23, 40), (400, 47), (47, 400), (211, 173)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("side", "shorter"), [(24, 27), (24, None), (60, 64), (1, 1)])
def test_the_middle_is_the_same_to_the_bit(size, side, shorter):
    image = np.random.default_rng(7).integers(0, 256, (*size, 3), dtype=np.uint8)  # noise: rounding shows
    spec = InputSpec(("a",), 3, side, [0.0] * 3, [1.0] * 3, shorter=shorter)
    assert torch.equal(frame(torch.from_numpy(image).permute(2, 0, 1)[None], spec)[0], spec.framing(image))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_whole_image_in_a_grey_square_and_a_grey_one_are_the_same_to_the_bit(size, channels):
    image = np.random.default_rng(7).integers(0, 256, (*size, 3), dtype=np.uint8)
    numbers = [0.0] * channels, [1.0] * channels
    for extra in ({"fit": True}, {}):
        spec = InputSpec(("a",), channels, 24, *numbers, shorter=27, extra=extra)
        assert torch.equal(frame(torch.from_numpy(image).permute(2, 0, 1)[None], spec)[0], spec.framing(image))


def test_a_model_of_grey_images_takes_grey_ones_as_they_are():
    image = np.random.default_rng(7).integers(0, 256, (40, 30, 1), dtype=np.uint8)
    spec = InputSpec(("a",), 1, 24, [0.0], [1.0], shorter=27)
    assert torch.equal(frame(torch.from_numpy(image).permute(2, 0, 1)[None], spec)[0], spec.framing(image))


def test_framed_images_pass_through_unchanged():
    images = torch.randint(0, 256, (2, 3, 24, 24), dtype=torch.uint8)
    assert torch.equal(frame(images, InputSpec(("a",), 3, 24, [0.0] * 3, [1.0] * 3, shorter=27)), images)
