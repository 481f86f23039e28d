import colorsys

import pytest
import torch

from saccade.data.augment import Augment
from saccade.data.photometric import distort, from_hsv, recolour, to_hsv
from saccade.settings import AugmentConfig

KEYS = torch.arange(400)


def test_hue_saturation_and_value_are_those_of_the_standard_library():
    images = torch.rand(2, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    images[0, :, 0] = torch.tensor([[0.0, 1.0, 0.3, 0.2, 0.5]]).expand(3, -1)  # greys
    found = torch.stack(to_hsv(images), dim=1)
    wanted = [colorsys.rgb_to_hsv(*pixel) for pixel in images.permute(0, 2, 3, 1).reshape(-1, 3).tolist()]
    torch.testing.assert_close(found.permute(0, 2, 3, 1).reshape(-1, 3), torch.tensor(wanted))
    torch.testing.assert_close(from_hsv(*to_hsv(images)), images)


def test_hue_is_turned_and_saturation_scaled_by_hand():
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    one, turn = torch.ones(1, 1, 1, 1), torch.full((1, 1, 1, 1), 1 / 3)
    assert recolour(red, one, turn).flatten().tolist() == pytest.approx([0, 1, 0], abs=1e-6)
    assert recolour(red, 0.5 * one, 0 * turn).flatten().tolist() == pytest.approx([1, 0.5, 0.5], abs=1e-6)


def test_half_of_the_images_get_each_change_within_its_range():
    pixel = torch.tensor([0.4, 0.3, 0.2]).view(1, 3, 1, 1).expand(400, 3, 1, 1)
    hue, _, _ = (part.flatten() for part in to_hsv(distort(pixel, KEYS, 0.5)))
    assert (distort(pixel, KEYS, 0.0) - pixel).abs().max() < 1e-6
    turn = (hue - 1 / 12 + 0.5) % 1 - 0.5
    turned = turn.abs() > 1e-5
    assert 0.4 < turned.float().mean() < 0.6
    assert 0.09 < turn.abs().max() <= 0.1 + 1e-4
    grey = distort(torch.full((400, 3, 1, 1), 0.4), KEYS, 0.5)[:, 0].flatten()
    assert (grey < 0.4 * 0.5).any()  # darker and of less contrast
    assert grey.min() >= (0.4 - 32 / 255) * 0.5 - 1e-6
    assert grey.max() <= (0.4 + 32 / 255) * 1.5 + 1e-6


def test_an_image_is_distorted_alike_in_any_batch_and_only_where_it_is_asked_for():
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    more = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "img_size": 8}
    keys = torch.tensor([5, 6, 7, 8])
    plain, distorted = (Augment(AugmentConfig(crop="none", flip=0.0, distort=p), **more) for p in (0.0, 0.5))
    found = distorted({"image": images, "key": keys})["image"]
    assert not torch.allclose(found, plain({"image": images, "key": keys})["image"])
    alone = distorted({"image": images[2:3], "key": keys[2:3]})["image"]
    torch.testing.assert_close(alone[0], found[2])
