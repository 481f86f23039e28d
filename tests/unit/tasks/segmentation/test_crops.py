"""Training crops as in the papers' code: proportions, how scales are drawn, and crops that show several classes."""

import pytest
import torch

from saccade.data.geometry import RATIO, draw_uniforms
from saccade.settings import AugmentConfig
from saccade.tasks.segmentation.augment import CropAugment, largest_share, scaled_crops, varied_crops
from saccade.training.recipes import configure

PAPERS = ("segment_cb", "segment_glnet_fpn", "segment_glnet_upernet", "segment_swin")


def crops(ratio=(1.0, 1.0), **more):
    draws = torch.full((1, 72), 0.25)
    draws[:, RATIO] = 0.9
    return scaled_crops(draws, scale=(0.5, 2.0), ratio=ratio, flip=0.0, part=0.5, **more)[0]


def test_a_scale_is_drawn_by_its_logarithm_or_uniformly():
    assert crops()[0, 0].item() == pytest.approx(0.5 / 2**-0.5)  # a quarter of the way from 1/2 to 2
    assert crops(uniform_scale=True)[0, 0].item() == pytest.approx(0.5 / 0.875)


@pytest.mark.parametrize("recipe", [*PAPERS, "detect_1x", "detect_3x", "detect_lsj"])
def test_the_papers_recipes_keep_proportions_and_clip_no_gradients(recipe):
    config = configure(recipe, {})
    assert config.optim.clip is None
    crop = crops(config.augment.ratio)
    assert crop[0, 0] == crop[1, 1]
    small = crops(configure(None, {"task": "segment"}).augment.ratio)
    assert small[0, 0] > 1.05 * small[1, 1]


@pytest.mark.parametrize("recipe", PAPERS)
def test_the_papers_segmenters_distort_colours_and_look_for_crops_of_several_classes(recipe):
    config = configure(recipe, {})
    assert (config.augment.distort, config.augment.jitter) == (0.5, 0.0)
    assert config.task == "segment:longest=2048,cat_max_ratio=0.75,uniform_scale=true"


@pytest.mark.parametrize(
    ("recipe", "head"),
    [
        ("detect_1x", "mask_rcnn:anchor=8"),
        ("detect_3x", "cascade:convs=4,per_class=true,anchor=8"),
        ("detect_lsj", "mask_rcnn:anchor=8"),
    ],
)
def test_the_papers_detectors_name_their_anchors(recipe, head):
    assert configure(recipe, {}).model.head == head


def test_the_share_of_the_most_frequent_class_is_counted_without_ignored_pixels():
    mask = torch.zeros(3, 8, 8, dtype=torch.long)
    mask[0, :, :2] = 5  # three quarters of class 0
    mask[1, :, :2], mask[1, :, 2:4] = 5, -1  # four of six columns that count
    mask[2] = -1
    whole = torch.eye(3).expand(3, 3, 3)
    assert largest_share(mask, whole, 8).tolist() == pytest.approx([0.75, 2 / 3, 1.0])


def test_a_crop_of_one_class_is_moved_to_where_there_are_several_and_others_stay():
    keys = torch.arange(64)
    masks = torch.zeros(64, 64, 64, dtype=torch.long)
    masks[:, :, 48:] = 1
    draws = draw_uniforms(keys)
    before = scaled_crops(draws, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.5, part=0.5)
    after = varied_crops(before, masks, keys, ratio=0.75, side=32)
    shares = [largest_share(masks, crop, 8) for crop in (before, after)]
    fine = shares[0] < 0.75
    assert 0 < fine.sum() < 40
    assert (shares[1] < 0.75).float().mean() > 0.9
    assert torch.equal(after[fine], before[fine])
    assert torch.equal(after[:, :2, :2], before[:, :2, :2])  # size and flip
    assert (after[~fine, :2, 2] != before[~fine, :2, 2]).any(1).all()
    assert after[:, :2, 2].abs().max() <= 0.5  # inside of the image
    alone = varied_crops(before[5:6], masks[5:6], keys[5:6], ratio=0.75, side=32)
    torch.testing.assert_close(alone[0], after[5])


def test_crops_follow_the_option_in_training():
    keys, more = torch.arange(16), {"mean": (0.5,) * 3, "std": (0.5,) * 3, "crop": 16, "scale": (1.0, 1.0)}
    mask = torch.zeros(16, 64, 64, dtype=torch.int16)
    mask[:, 40:] = 1
    batch = {"image": torch.zeros(16, 3, 64, 64, dtype=torch.uint8), "key": keys, "mask": mask}
    found = {}
    for ratio in (1.0, 0.75):
        augment = CropAugment(AugmentConfig(crop="none", ratio=[1.0, 1.0]), cat_max_ratio=ratio, **more)
        masks = augment(batch)["mask"].float()
        found[ratio] = (masks.mean((1, 2)) - 0.5).abs() < 0.3
    assert found[0.75].sum() > found[1.0].sum() + 4
