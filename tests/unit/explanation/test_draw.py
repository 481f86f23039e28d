import numpy as np
import pytest

from saccade.explanation import draw


@pytest.fixture
def image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (12, 20, 3), dtype=np.uint8)


def test_heat_colours_grow_lighter_with_the_value():
    table = draw.heat_colours(np.linspace(0, 1, 256))
    lightness = draw._to_oklab(table)[:, 0]
    assert np.all(np.diff(lightness) > -0.004)  # rounding to bytes apart, never darker
    assert np.all(np.diff(lightness[::8]) > 0.01)
    assert lightness[0] < 0.3 < 0.9 < lightness[-1]


def test_oklab_matches_published_values_and_comes_back():
    colours = np.array([[255, 255, 255], [255, 0, 0], [0, 128, 77]], dtype=np.uint8)
    places = draw._to_oklab(colours)
    np.testing.assert_allclose(places[0], [1, 0, 0], atol=1e-4)
    np.testing.assert_allclose(places[1], [0.628, 0.225, 0.126], atol=1e-3)
    np.testing.assert_array_equal(draw._from_oklab(places), colours)


def test_sixty_four_labels_have_colours_that_differ():
    places = draw._to_oklab(draw.label_colours(64))
    distance = np.linalg.norm(places[:, None] - places[None], axis=-1)
    assert distance[~np.eye(64, dtype=bool)].min() > 0.06
    np.testing.assert_array_equal(draw.label_colours(9), draw.label_colours(64)[:9])
    assert len(draw.label_colours(100)) == 100


def test_overlay_keeps_the_greys_of_the_image_at_alpha_0_and_shows_the_colours_at_alpha_1(image):
    heat = np.random.default_rng(1).random((12, 20))
    grey = draw.heat_overlay(image, heat, alpha=0.0)
    np.testing.assert_allclose(grey, np.repeat((image @ [[0.299], [0.587], [0.114]]), 3, axis=2), atol=1)
    np.testing.assert_array_equal(draw.heat_overlay(image, heat, alpha=1.0), draw.heat_colours(heat))


def test_label_overlay_puts_every_cell_where_it_lies(image):
    labels = np.array([[0, 1, 2, 3], [4, 5, 6, 7]])
    drawn = draw.label_overlay(image, labels, 8, alpha=1.0)
    assert drawn.shape == image.shape
    for row in range(2):
        for column in range(4):
            cell = drawn[row * 6 : row * 6 + 6, column * 5 : column * 5 + 5].reshape(-1, 3)
            np.testing.assert_array_equal(cell, np.broadcast_to(draw.label_colours(8)[labels[row, column]], cell.shape))


def test_pure_shares_are_pure_colours():
    np.testing.assert_array_equal(draw.share_colours(np.eye(3)), np.eye(3, dtype=np.uint8) * 255)
    np.testing.assert_array_equal(draw.share_colours(np.array([0.5, 0.25, 0.25])), [128, 64, 64])


def test_upsampling_smoothly_stays_within_the_values_and_keeps_the_order_of_axes():
    values = np.array([[0.0, 1.0, 2.0]])
    up = draw.upsample(values, 4, 30)
    assert up.shape == (4, 30)
    assert up.min() == 0
    assert up.max() == 2
    assert np.all(np.diff(up[0]) >= 0)


def test_heat_is_scaled_by_its_greatest_value_and_zeros_stay():
    np.testing.assert_array_equal(draw.scale_heat(np.array([-1.0, 0.0, 2.0, 4.0])), [0, 0, 0.5, 1])
    np.testing.assert_array_equal(draw.scale_heat(np.array([-1.0, 0.0])), [0, 0])


def test_montage_keeps_every_image(image):
    other = np.full((8, 20, 3), 7, dtype=np.uint8)
    page = draw.montage([image, other, image], 2, captions=["a", "b", "c"])
    step = image.shape[0] + draw.CAPTION + draw.GAP
    assert page.shape == (2 * step - draw.GAP, 2 * 20 + draw.GAP, 3)
    np.testing.assert_array_equal(page[draw.CAPTION : draw.CAPTION + 12, :20], image)
    np.testing.assert_array_equal(page[draw.CAPTION : draw.CAPTION + 8, 24:], other)
    np.testing.assert_array_equal(page[step + draw.CAPTION :, :20], image)
    with pytest.raises(ValueError, match="caption"):
        draw.montage([image], captions=["a", "b"])
