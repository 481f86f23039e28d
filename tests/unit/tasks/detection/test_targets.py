"""What heads are to find, and what they lose: hand-made cases."""

import math

import pytest
import torch
from torchvision.ops import roi_align

from saccade.tasks.detection.boxes import encode, overlaps
from saccade.tasks.detection.dense import ATSS, RetinaNet, centredness
from saccade.tasks.detection.fpn import FPN, level_of, look_at, pack
from saccade.tasks.detection.losses import focal, mean_where, smooth_l1
from saccade.tasks.detection.matching import (
    match_by_atss,
    match_by_overlap,
)
from saccade.tasks.detection.region_features import region_features
from saccade.tasks.detection.roi import OVERLAPS, Cascade, MaskRCNN
from saccade.tasks.detection.sparse import SparseRCNN
from support.boxes import CHANNELS, boxes, objects

# Losses


def test_focal_loss_of_known_logits() -> None:
    logits, targets = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0])
    base = math.log(2) * 0.25
    assert focal(logits, targets).tolist() == pytest.approx([0.25 * base, 0.75 * base])
    assert focal(torch.tensor([8.0]), torch.tensor([1.0])).item() < 1e-7


def test_smooth_loss_is_square_below_beta() -> None:
    assert smooth_l1(torch.tensor([0.5, 2.0]), torch.zeros(2), beta=1.0).tolist() == pytest.approx([0.125, 1.5])
    assert smooth_l1(torch.tensor([0.5]), torch.zeros(1), beta=0.0).item() == 0.5


def test_means_leave_out_what_is_not_chosen_and_never_divide_by_zero() -> None:
    values, chosen = torch.tensor([[1.0, 2.0], [torch.inf, 4.0]]), torch.tensor([True, False])
    assert mean_where(values, chosen).item() == 3.0
    assert mean_where(values, torch.zeros(2, dtype=torch.bool)).item() == 0.0


def test_centredness_is_one_at_the_centre_and_zero_at_the_border() -> None:
    box = boxes((0, 0, 20, 10)).expand(3, 4)
    anchors = boxes((8, 3, 12, 7), (-2, 3, 2, 7), (3, 3, 7, 7))
    assert centredness(anchors, box).tolist() == pytest.approx([1.0, 0.0, math.sqrt(5 / 15)])


def test_retinanet_loses_nothing_on_perfect_answers_and_counts_each_images_matches() -> None:
    head = RetinaNet(channels=CHANNELS, num_classes=2, width=8, depth=1)
    maps = [torch.zeros(1, 8, side, side) for side in (16, 8, 4, 2)]
    anchors, counts = head.anchors((64, 64), maps)
    assert sum(counts) == len(anchors) == 9 * (64 + 16 + 4 + 1 + 1)
    truth = objects(tuple(anchors[300].tolist()), labels=[1])  # type: ignore[arg-type]
    shared = overlaps(truth.boxes, anchors[None])
    matched = match_by_overlap(shared, truth.real, high=0.5, low=0.4, every_object=True)[0]
    logits = torch.full((1, len(anchors), 2), -20.0)
    logits[0, matched >= 0, 1] = 20.0
    codes = encode(truth.boxes[:, 0].expand(len(anchors), 4), anchors)[None]
    found = head.loss({"logits": logits, "codes": codes}, truth, anchors, counts)
    assert all(value.item() == pytest.approx(0.0, abs=1e-5) for value in found.values())
    wrong = head.loss({"logits": -logits, "codes": codes + 1}, truth, anchors, counts)
    assert wrong["boxes"].item() == pytest.approx(4.0)  # every code of every match is off by one
    assert wrong["classes"].item() > 10


def test_atss_weighs_boxes_by_centredness() -> None:
    head = ATSS(channels=CHANNELS, num_classes=2, width=8, depth=1)
    maps = [torch.zeros(1, 8, side, side) for side in (16, 8, 4, 2)]
    anchors, counts = head.anchors((64, 64), maps)
    truth = objects((10, 12, 50, 44), labels=[0])
    codes = encode(truth.boxes[:, 0].expand(len(anchors), 4), anchors, head.codes)[None]
    raw = {"logits": torch.zeros(1, len(anchors), 2), "codes": codes, "centred": torch.zeros(1, len(anchors))}
    found = head.loss(raw, truth, anchors, counts)
    assert found["boxes"].item() == pytest.approx(0.0, abs=1e-5)
    matched = match_by_atss(truth.boxes, truth.real, anchors, counts)
    chosen = centredness(anchors[None], truth.boxes.expand(1, len(anchors), 4))[matched >= 0]
    want = torch.nn.functional.binary_cross_entropy_with_logits(torch.zeros_like(chosen), chosen)
    assert found["centredness"].item() == pytest.approx(want.item(), rel=1e-5)


# Looking at boxes


def test_large_boxes_are_looked_at_on_coarse_maps() -> None:
    looked = boxes((0, 0, 10, 10), (0, 0, 112, 112), (0, 0, 224, 224), (0, 0, 900, 900))
    assert level_of(looked, 4, finest=4.0).tolist() == [0, 1, 2, 3]


def test_packed_maps_give_what_each_map_gives_alone() -> None:
    maps = [torch.rand(2, 3, side, side) for side in (64, 32, 16, 8)]
    looked = torch.stack([boxes((3, 3, 40, 50), (0, 0, 255, 256)), boxes((100, 0, 256, 120), (1, 1, 9, 256))])
    found = look_at(pack(maps, [4.0, 8.0, 16.0, 32.0]), looked, 7).view(2, 2, 3, 7, 7)
    levels = level_of(looked, 4, finest=4.0)
    for image in range(2):
        for place in range(2):
            level = int(levels[image, place])
            rows = torch.cat([torch.tensor([float(image)]), looked[image, place]])[None]
            want = roi_align(maps[level], rows, 7, 1 / 2 ** (level + 2), 2)
            torch.testing.assert_close(found[image, place], want[0], atol=1e-5, rtol=1e-5)


def test_the_pyramid_adds_coarse_maps_to_finer_ones() -> None:
    fpn = FPN([4, 4], 4, more="pool")
    for module in fpn.modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.dirac_(module.weight)
            torch.nn.init.zeros_(module.bias)
    found = fpn([torch.ones(1, 4, 4, 4), torch.full((1, 4, 2, 2), 2.0)])
    assert [one.shape[-1] for one in found] == [4, 2, 1]
    assert (found[0] == 3).all()
    assert (found[1] == 2).all()


def test_each_look_of_the_cascade_asks_for_a_better_overlap_than_the_one_before() -> None:
    torch.manual_seed(0)
    head = Cascade(channels=CHANNELS, num_classes=2, width=8, hidden=8, sampled=16, masks=False)
    truth = objects((8, 8, 40, 40), labels=[1])
    asked = []
    look = head._stage

    def listen(number, *rest):  # type: ignore[no-untyped-def]
        asked.append((number, OVERLAPS[number]))
        return look(number, *rest)

    head._stage = listen  # type: ignore[method-assign]
    maps = [torch.rand(1, 8, side, side) for side in (16, 8, 4, 2)]
    found = head.losses(maps, truth, (64, 64), torch.tensor([3]))
    assert asked == [(0, 0.5), (1, 0.6), (2, 0.7)]
    assert {name for name in found if name.startswith("classes")} == {"classes_1", "classes_2", "classes_3"}
    assert [head.heads[0].boxes.out_features, len(head.heads)] == [4, 3]  # one box for all classes
    for one in head.heads:
        torch.nn.init.zeros_(one.classes.weight)
    found = head.losses(maps, truth, (64, 64), torch.tensor([3]))  # of three equal logits each
    assert [found[f"classes_{n}"].item() / math.log(3) for n in (1, 2, 3)] == pytest.approx([1, 0.5, 0.25])


def test_proposals_hold_what_is_there_so_that_a_fresh_head_learns_of_objects() -> None:
    torch.manual_seed(0)
    head = MaskRCNN(channels=CHANNELS, num_classes=2, width=8, hidden=8, sampled=16, masks=False)
    truth = objects((8, 8, 40, 40), labels=[1])
    maps = [torch.rand(1, 8, side, side) for side in (16, 8, 4, 2)]
    head.losses(maps, truth, (64, 64), torch.tensor([3]))["boxes"].backward()
    assert head.heads[0].boxes.weight.grad[4:].abs().sum() > 0  # of the object's own class
    assert head.heads[0].boxes.weight.grad[:4].abs().sum() == 0  # and of no other


def test_sparse_looks_start_from_whole_images_and_lose_by_pairs_alone() -> None:
    torch.manual_seed(0)
    head = SparseRCNN(channels=CHANNELS, num_classes=2, width=16, proposals=5, looks=2)
    maps = [torch.rand(1, 8, side, side) for side in (16, 8, 4, 2)]
    found = head.losses(maps, objects((8, 8, 40, 40), labels=[1]), (64, 64), torch.tensor([0]))
    assert set(found) == {f"{name}_{look}" for name in ("classes", "corners", "overlap") for look in (1, 2)}
    empty = head.losses(maps, objects((0, 0, 0, 0), labels=[-1]), (64, 64), torch.tensor([0]))
    assert empty["corners_1"].item() == 0.0
    assert empty["overlap_2"].item() == 0.0
    assert empty["classes_2"].item() > 0


@pytest.mark.parametrize("crowd", [False, True])
def test_sparse_losses_of_known_answers_leave_out_those_in_a_crowd(crowd: bool) -> None:
    head = SparseRCNN(channels=CHANNELS, num_classes=2, width=16, proposals=2, looks=1)
    found = boxes((0, 0, 10, 20), (50, 50, 60, 60))[None]
    head.forward = lambda *_: [(torch.zeros(1, 2, 2), found)]  # type: ignore[method-assign]
    truth = objects((0, 0, 10, 10), (40, 40, 70, 70), labels=[1, 0 if crowd else -1], crowd=[False, crowd])
    losses = head.losses([], truth, (100, 100), torch.tensor([0]))
    each = 0.25 * math.log(2)  # of a logit of 0: half missed, squared
    wrong = 1 if crowd else 3  # logits that should be low
    assert losses["classes_1"].item() == pytest.approx(2 * each * (0.25 + 0.75 * wrong))
    assert losses["corners_1"].item() == pytest.approx(5 * 0.1)  # one corner is off by a tenth of the image
    assert losses["overlap_1"].item() == pytest.approx(2 * 0.5)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(("height", "width", "side"), [(18, 38, 7), (3, 5, 14), (2, 2, 7)])
def test_features_of_boxes_on_a_cpu_are_torchvisions(aligned, height, width, side) -> None:
    draws = torch.Generator().manual_seed(0)
    maps = torch.rand(3, 4, height, width, generator=draws, requires_grad=True)
    low = torch.rand(40, 2, generator=draws) * 1.6 * torch.tensor([width, height]) - 0.3 * width  # also outside
    sides = torch.rand(40, 2, generator=draws) * width * (torch.arange(40) % 5 > 0)[:, None]  # also empty ones
    rows = torch.cat([(torch.arange(40) % 3).float()[:, None], low, low + sides], dim=1).requires_grad_()
    found, want = (
        region_features(maps, rows, side, aligned=aligned),
        roi_align(maps, rows, side, 1.0, 2, aligned=aligned),
    )
    assert found.shape == want.shape
    torch.testing.assert_close(found, want, atol=2e-5, rtol=1e-4)
    weight = torch.rand(found.shape, generator=draws)
    grads = [torch.autograd.grad((one * weight).sum(), maps)[0] for one in (found, want)]
    torch.testing.assert_close(*grads, atol=5e-4, rtol=1e-4)
    assert region_features(maps, rows[:0], side).shape == (0, 4, side, side)


def test_features_of_boxes_that_are_no_numbers_are_none() -> None:
    rows = torch.tensor([[0.0, float("nan"), 0, 4, 4], [0.0, 0, 0, float("inf"), 4], [0.0, 1, 1, 4, 4]])
    found = region_features(torch.rand(1, 2, 8, 8, requires_grad=True), rows, 7)
    assert found[2].isfinite().all()
    assert not found[0].isfinite().all()
