"""Images framed by their shorter and longest side."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from saccade.data.framing import ImageEncoder, fitted
from saccade.data.geometry import OUTSIDE
from saccade.data.sides import SideFraming, to_one_shape
from saccade.data.source import Sample
from saccade.settings import AugmentConfig

ADE, COCO = SideFraming(512, longest=2048), SideFraming(800, longest=1333)
PLAIN = AugmentConfig(crop="none", ratio=(1.0, 1.0))


def test_papers_sizes():
    assert ADE.resize_factor(512, 683) == 1.0
    assert fitted(512, 683, ADE.canvas(512, 683))[2:] == (683, 512)
    assert fitted(1080, 1920, COCO.canvas(1080, 1920))[2:] == (1333, 750)
    assert fitted(640, 480, COCO.canvas(640, 480))[2:] == (800, 1067)
    assert ADE.canvas(256, 2048)[1] == 1024 * 2  # twice its size would be longer than 2048


@pytest.mark.parametrize("framing", [ADE, COCO, SideFraming(32, longest=32), SideFraming(33, longest=50)])
def test_canvases_are_few_and_give_the_size_back(framing):
    sizes = np.random.default_rng(0).integers(10, 3000, (3000, 2)).tolist()
    canvases = {framing.canvas(*size) for size in sizes}
    assert len(canvases) <= 7
    for height, width in sizes:
        canvas, factor = framing.canvas(height, width), framing.resize_factor(height, width)
        left, top, wide, high = fitted(height, width, canvas)
        assert abs(wide - max(width * factor, 1)) <= 1
        assert abs(high - max(height * factor, 1)) <= 1
        assert framing.canvas(*canvas) == canvas
        assert left >= 0
        assert top >= 0


def ramp(height, width):
    """Return an image whose first two channels are the place of each pixel."""
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 0], image[..., 1] = np.arange(height)[:, None], np.arange(width)
    return image


def test_a_framed_image_has_its_own_pixels():
    image = ramp(64, 90)
    framing = SideFraming(64, longest=200)
    box = framing.box(64, 90)
    framed = framing.image(image, box).permute(1, 2, 0).numpy()
    assert framed.shape == (64, 96, 3)
    assert np.array_equal(framed[:, 3:93], image)
    assert (framed[:, :3] == 128).all()
    assert framing.boxes(np.array([[1, 2, 90, 64]]), box, (64, 90)).tolist() == [[4, 2, 93, 64]]


def test_crops_of_training_are_of_the_drawn_size_and_move_masks_and_boxes_alike():
    framing = replace(SideFraming(64, longest=256), config=PLAIN, crop=48, scale=(0.5, 2.0), uniform_scale=True)
    image, factors = ramp(80, 200), []
    mask = image[..., 1].astype(np.int64)
    for word in range(60):
        box = framing.box(80, 200, word)
        framed, moved = framing.image(image, box), framing.mask(mask, box)
        assert framed.shape == (3, 48, 48)
        assert moved.shape == (48, 48)
        factors.append(48 / (box[3] - box[1]))
        inside = moved != OUTSIDE
        assert (np.abs(framed[1].numpy().astype(int) - moved)[inside] <= 3).mean() > 0.95
        assert (framed[2].numpy()[~inside] == 128).all()
        (corners,) = framing.boxes(np.array([[20, 10, 180, 70]]), box, (80, 200))
        assert corners[2] - corners[0] == pytest.approx(160 * factors[-1], rel=1e-4)
        if 0 < corners[0] < 46:
            column = moved[:, math.ceil(corners[0])]
            assert abs(np.median(column[column != OUTSIDE]) - 20) <= 1 / factors[-1] + 1
    low, high = min(factors) / (64 / 80), max(factors) / (64 / 80)
    assert 0.5 <= low < 0.65
    assert 1.8 < high <= 2


def test_factors_of_a_detector_keep_the_longest_side():
    framing = replace(COCO, config=PLAIN, scale=(0.6, 1.0), uniform_scale=True)
    shorter = []
    for word in range(200):
        left, top, right, bottom = framing.box(1080, 1920, word)
        factor = framing.canvas(1080, 1920)[1] / (right - left)
        shorter.append(factor * 1080)
        assert left <= 0
        assert right >= 1920
        assert top <= 0
        assert bottom >= 1080
    assert 480 <= min(shorter) < 500
    assert max(shorter) == pytest.approx(1333 / 1920 * 1080)
    assert sum(side > 749 for side in shorter) > 10  # from 750 on, the longer side has its limit


def test_a_sample_is_the_same_for_the_same_key():
    framing = replace(ADE, config=PLAIN, crop=32, scale=(0.5, 2.0))
    sample = Sample({"image": ramp(100, 150)}, None, "name")
    one, two, three = (ImageEncoder(framing)(sample, word)["image"] for word in (7, 7, 8))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)


def test_samples_of_several_shapes_share_a_square():
    shapes = [(8, 12), (12, 8), (8, 8)]
    samples = [
        {"image": torch.ones(3, *shape, dtype=torch.uint8), "mask": torch.ones(2, *shape), "size": torch.tensor(shape)}
        for shape in shapes
    ]
    for (height, width), sample in zip(shapes, to_one_shape(samples), strict=True):
        assert sample["image"].shape == (3, 12, 12)
        assert (sample["image"][:, :height, :width] == 1).all()
        assert sample["image"].sum() == 3 * (height * width + 128 * (144 - height * width))
        assert (sample["mask"] == OUTSIDE).sum() == 2 * (144 - height * width)
    assert [sample["image"].shape for sample in to_one_shape(samples[:1])] == [(3, 8, 12)]
