import numpy as np
import pytest

from saccade.evaluation.robust import drop_patches, occlude_centre, shuffle_patches
from support.images import pixels


def white(side: int) -> np.ndarray:
    return np.full((side, side, 3), 255, np.uint8)


def test_centre_of_the_stated_share_is_black():
    found = occlude_centre(white(224), 0.25)
    assert (found[56:168, 56:168] == 0).all()  # the 112 x 112 of the CB paper
    assert (found == 0).mean() == pytest.approx(0.25)


@pytest.mark.parametrize("side", [28, 30, 224])
def test_share_of_the_patches_is_dropped(side):
    found = drop_patches(white(side), 0.5, rng_key=3)
    assert (found == 0).mean() == pytest.approx(0.5, abs=0.08)
    assert np.array_equal(found, drop_patches(white(side), 0.5, rng_key=3))
    assert not np.array_equal(found, drop_patches(white(side), 0.5, rng_key=4))


@pytest.mark.parametrize(("side", "pieces"), [(28, 2), (28, 8), (224, 8)])
def test_shuffled_pieces_are_the_same_pieces_elsewhere(side, pieces):
    image = pixels(1, side, side)
    found = shuffle_patches(image, pieces, rng_key=5)
    assert not np.array_equal(found, image)
    assert np.array_equal(np.sort(found.reshape(-1, 3), 0), np.sort(image.reshape(-1, 3), 0))
    cell = side // pieces
    edge = (side - cell * pieces) // 2
    first = image[edge : edge + cell, edge : edge + cell]
    places = range(edge, edge + cell * pieces, cell)
    assert any(np.array_equal(found[y : y + cell, x : x + cell], first) for y in places for x in places)


def test_more_pieces_than_pixels_are_refused():
    with pytest.raises(ValueError, match="8 pieces"):
        shuffle_patches(white(6), 8, rng_key=0)
