import base64
import io

import numpy as np
import pytest
from PIL import Image

from saccade.report.image import encode_image, png_uri
from support.markup import parse

RANDOM = np.random.default_rng(0)


def decode(uri):
    head, _, data = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


@pytest.mark.parametrize("shape", [(28, 28), (28, 28, 1), (28, 20, 3)])
def test_tiny_image_is_enlarged_by_squares(shape):
    pixels = RANDOM.integers(0, 256, shape, dtype=np.uint8)
    shown = decode(png_uri(pixels))
    assert shown.shape[0] == 112
    assert np.array_equal(shown[::4, ::4], pixels.squeeze())
    assert np.array_equal(shown[3::4, 3::4], pixels.squeeze())


def test_large_image_is_made_small_and_keeps_its_shape():
    shown = decode(png_uri(RANDOM.integers(0, 256, (600, 300, 3), dtype=np.uint8)))
    assert shown.shape == (128, 64, 3)
    assert decode(png_uri(np.zeros((3, 2000), np.uint8))).shape == (1, 128)


def test_image_that_fits_is_left_as_it_is():
    pixels = RANDOM.integers(0, 256, (100, 90, 3), dtype=np.uint8)
    assert np.array_equal(decode(png_uri(pixels)), pixels)


def test_part_of_a_larger_array_is_read_by_its_pixels():
    pixels = RANDOM.integers(0, 256, (100, 200, 3), dtype=np.uint8)[:, ::2, ::-1]
    assert np.array_equal(decode(png_uri(pixels)), pixels)


def test_element_has_words_and_its_size():
    (image,) = parse(encode_image(np.zeros((10, 20), np.uint8), alt='a "<b>"')).elements
    assert image.attrs["alt"] == 'a "<b>"'
    assert (image.attrs["width"], image.attrs["height"]) == ("100", "50")


@pytest.mark.parametrize(
    "pixels", [np.zeros((4, 4)), np.zeros((4, 4, 2), np.uint8), np.zeros((0, 4, 3), np.uint8), np.zeros(4, np.uint8)]
)
def test_what_is_no_image_is_refused(pixels):
    with pytest.raises(ValueError, match="it must be uint8 with shape"):
        png_uri(pixels)
