"""Masks of objects: runs, polygons, layers, and regions that cannot be read."""

import json

import numpy as np
import pycocotools.mask
import pytest
import torch
from PIL import Image

from saccade.data.geometry import draw_uniforms
from saccade.data.image import BadSample
from saccade.settings import AugmentConfig
from saccade.tasks.detection.objects import unpack_masks
from saccade.tasks.detection.regions import MOST_LAYERS, layers_needed, paint_objects, to_mask
from saccade.tasks.detection.runs import pack_runs, paint_runs, unpack_counts
from saccade.tasks.segmentation.augment import CropAugment
from support.detection_sets import encode, kinds, opened
from support.objects import change, make_objects


@pytest.fixture
def root(tmp_path):
    return make_objects(tmp_path / "set")


# Regions of odd kinds

LETTERS = pack_runs(np.arange(64 * 64).reshape(64, 64) % 64 < 9)


def with_region(root, region):
    return change(root, lambda whole: whole["annotations"][0].update(segmentation=region, bbox=[4, 4, 30, 30]))


@pytest.mark.parametrize(
    "region",
    [
        [[4, 4, 34, 4, 34, 34, 4, 34]],
        [4, 4, 34, 4, 34, 34, 4, 34],
        [[4, 4, 19, 4, 19, 34, 4, 34], [19, 4, 34, 4, 34, 34, 19, 34]],
        {"size": [64, 64], "counts": [4 * 64 + 4, *([30, 34] * 29), 30]},
        [],
        None,
        [[1, 2, 3]],
        "polygon",
        5,
        [[4, 4, 4.1, 4, 4.1, 4.1]],
    ],
)
def test_region_that_can_be_read_or_is_replaced_by_its_box(root, region):
    encoded = encode(opened(with_region(root, region)).train)
    own = (encoded["mask"] == 1).any(0)
    assert own[4:34, 4:34].all()
    assert own.sum() == 30 * 30


def write_discs(root, centres, *, side=64, reach=12):
    """Write a set of one image of discs."""
    rows, columns = np.mgrid[:side, :side]
    masks = [(rows - y) ** 2 + (columns - x) ** 2 < reach**2 for x, y in centres]
    objects = [
        {
            "id": number + 1,
            "image_id": 1,
            "category_id": 1,
            "bbox": [x - reach, y - reach, 2 * reach, 2 * reach],
            "segmentation": {"size": [side, side], "counts": pack_runs(mask)},
        }
        for number, ((x, y), mask) in enumerate(zip(centres, masks, strict=True))
    ]
    images = [{"id": 1, "file_name": "one.png", "height": side, "width": side}]
    listed = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "disc"}]}
    (root / "images").mkdir(parents=True)
    Image.new("RGB", (side, side)).save(root / "images" / "one.png")
    for part in ("train", "val"):
        (root / f"{part}.json").write_text(json.dumps(listed))
    return masks


@pytest.mark.parametrize(
    ("centres", "layers"),
    [([(16, 16), (48, 48)], 1), ([(20, 20), (26, 20)], 2), ([(20, 20), (26, 20), (32, 20), (50, 50)], 3)],
)
def test_masks_that_share_pixels_are_kept_whole_in_layers(tmp_path, centres, layers):
    masks = write_discs(tmp_path, centres)
    encoded = encode(opened(tmp_path).train)
    assert encoded["mask"].shape == (layers, 64, 64)
    found = unpack_masks(encoded["mask"], torch.arange(1, len(masks) + 1)).numpy()
    np.testing.assert_array_equal(found, np.stack(masks))


def test_of_more_masks_over_each_other_than_layers_the_smaller_hide_the_larger():
    boxes = np.array([[0, 0, 20 - place, 20 - place] for place in range(6)], dtype=np.float32)
    layers = layers_needed([None] * 6, boxes, (32, 32))
    found = paint_objects([None] * 6, boxes, (32, 32), name="one", layers=layers)
    sizes = [int((found == place + 1).sum()) for place in range(6)]
    assert layers == MOST_LAYERS
    assert sizes == [400, 361, 324, 17**2 - 16**2, 16**2 - 15**2, 225]


@pytest.mark.parametrize("seed", range(5))
def test_as_many_layers_are_counted_as_painting_takes(seed):
    draws = np.random.default_rng(seed)
    corners = draws.integers(0, 20, (6, 2))
    boxes = np.concatenate([corners, corners + draws.integers(1, 12, (6, 2))], axis=1).astype(np.float32)
    painted = paint_objects([None] * 6, boxes, (32, 32), name="one", layers=6)
    assert layers_needed([None] * 6, boxes, (32, 32)) == min(painted.any((1, 2)).sum(), MOST_LAYERS)


def test_crops_move_all_layers_alike():
    layers = torch.randint(0, 5, (2, 3, 32, 32))
    crop = CropAugment(AugmentConfig(), crop=32, scale=(0.6, 1.6), mean=(0.5,) * 3, std=(0.5,) * 3, device="cpu")
    images = {"image": torch.zeros(2, 3, 32, 32, dtype=torch.uint8)}
    moved = crop.geometry(images, draw_uniforms(torch.tensor([3, 4])), operations=0, later=[])
    together = moved.mask(layers)
    for place in range(3):
        torch.testing.assert_close(together[:, place], moved.mask(layers[:, place]))


@pytest.mark.parametrize("region", [[[1, 2, 3]], "polygon", 5, [[4, 4, 34, 4, 34, 34], [1, 2]]])
def test_odd_region_is_told(root, region):
    data = opened(with_region(root, region))
    assert any("problems with 1 object" in note for note in data.notes)
    assert ("box", "images/train/0.png") in kinds(root)[0]


@pytest.mark.parametrize(
    "region",
    [
        {"size": [32, 32], "counts": [5, 5]},
        {"size": [64, 64], "counts": [-5, 10]},
        {"size": [64, 64], "counts": [5, 10**18]},
        {"size": [64, 64], "counts": ["a"]},
        {"size": [64, 64], "counts": [True, 5]},
        {"size": [64, 64], "counts": LETTERS[:-1] + "o"},
        {"size": [64, 64], "counts": "\x00\x01"},
        {"size": [64, 64], "counts": "oooooooooooooooooooo0"},
        {"size": [64, 64], "counts": "ünï"},
        {"size": [64, 64]},
        {"counts": [5, 5]},
        {"size": "64", "counts": [5, 5]},
        [[4, 4, 1e12, 4, 1e12, 1e12]],
        [[4, 4, float("nan"), 4, 5, 6]],
        [["a", "b", "c", "d", "e", "f"]],
    ],
)
def test_region_that_cannot_be_read_is_told(root, region):
    data = opened(with_region(root, region))
    with pytest.raises(BadSample, match="object 1: "):
        encode(data.train)
    assert ("box", "images/train/0.png") in kinds(root)[0]


def test_runs_are_packed_as_coco_packs_them():
    tools = pytest.importorskip("faster_coco_eval.core.mask")
    draws = np.random.default_rng(0)
    for share in np.linspace(0, 1, 30):
        mask = draws.random(draws.integers(1, 50, 2)) < share
        packed = pack_runs(mask)
        assert packed.encode() == tools.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"]
        np.testing.assert_array_equal(paint_runs(unpack_counts(packed), mask.shape), mask)


def test_polygons_are_filled_as_coco_fills_them():
    polygons = [[3.5, 2.0, 30.2, 5.7, 20.0, 28.0], [31, 31, 39, 31, 35, 38]]
    theirs = pycocotools.mask.decode(pycocotools.mask.merge(pycocotools.mask.frPyObjects(polygons, 40, 44)))
    np.testing.assert_array_equal(to_mask(polygons, (40, 44)), theirs.astype(bool))
