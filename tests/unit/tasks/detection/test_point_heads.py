"""Corners and RepPoints: what they are to find, and what they lose."""

import math

import pytest
import torch

from saccade.tasks.detection.boxes import overlaps
from saccade.tasks.detection.corners import (
    corner_radius,
    heat_loss,
    heat_targets,
    pool_corner,
    verification_losses,
    verify_corners,
    within_targets,
)
from saccade.tasks.detection.reppoints import RepPointsV2, corners
from support.boxes import CHANNELS, boxes, objects

# RepPoints V2


def test_corners_are_the_first_two_points_in_whichever_order() -> None:
    points = torch.zeros(1, 18, 1, 1)
    points[0, :4, 0, 0] = torch.tensor([1.0, 2.0, -3.0, -4.0])  # down and across
    found = corners(points, torch.tensor([[100.0, 50.0]]), (10, 20))
    assert found[0, 0].tolist() == [20.0, 20.0, 140.0, 60.0]


def test_corner_pooling_looks_to_the_right_and_below() -> None:
    x = torch.zeros(1, 1, 3, 3)
    x[0, 0, 1, 2] = 5.0
    assert pool_corner(x, x, first=True)[0, 0].tolist() == [[0, 0, 5], [5, 5, 10], [0, 0, 0]]
    assert pool_corner(x, x, first=False)[0, 0].tolist() == [[0, 0, 0], [0, 0, 10], [0, 0, 5]]
    nothing = torch.zeros_like(x)
    assert pool_corner(x, nothing, first=True)[0, 0].tolist() == [[0, 0, 0], [5, 5, 5], [0, 0, 0]]


def test_a_corner_may_move_until_the_overlap_is_too_small() -> None:
    box = boxes((0, 0, 40, 20))
    radius = corner_radius(box).item()
    moved = boxes((radius, radius, 40 - radius, 20 - radius), (-radius, -radius, 40 + radius, 20 + radius))
    shifted = boxes((radius, radius, 40 + radius, 20 + radius))
    least = torch.cat([overlaps(box, moved)[0], overlaps(box, shifted)[0]]).min()
    assert least.item() == pytest.approx(0.7, abs=1e-3)


def test_heat_is_one_in_the_corners_cells_and_fades() -> None:
    truth = boxes((9, 18, 60, 62), (0, 0, 0, 0))[None]
    heat = heat_targets(truth, torch.tensor([[True, False]]), (8, 8), (8, 8))
    assert heat.shape == (1, 2, 8, 8)
    assert heat[0, 0, 2, 1] == 1
    assert heat[0, 1, 7, 7] == 1
    assert (heat == 1).sum() == 2
    near = heat_targets(truth, torch.tensor([[True, False]]), (32, 32), (2, 2))[0, 0]
    radius = corner_radius(truth[0, :1]).item()
    squared = (4.5 * 2 - 9) ** 2 + (10.5 * 2 - 18) ** 2  # from the centre of cell 10, 4 to the corner 9, 18
    assert near[9, 4] == 1
    assert near[10, 4].item() == pytest.approx(math.exp(-squared / (2 * ((2 * radius + 1) / 6) ** 2)))
    assert near[9, 4 + math.ceil(radius / 2) + 1] == 0
    perfect = torch.where(heat == 1, 20.0, -20.0)
    assert heat_loss(perfect, heat).item() < 1e-4
    assert heat_loss(-perfect, heat).item() > 10


def test_cells_within_two_boxes_are_of_the_smaller_one_and_count_less_in_large_objects() -> None:
    points = torch.tensor([[x + 0.5, y + 0.5] for y in range(4) for x in range(4)])
    truth, labels = boxes((0, 0, 4, 4), (0, 0, 2, 1))[None], torch.tensor([[0, 1]])
    kind, weight = within_targets(truth, labels, torch.tensor([[True, True]]), points, 2)
    assert kind[0, :, 1].nonzero()[:, 0].tolist() == [0, 1]
    assert kind[0, :, 0].sum() == 14
    assert weight[0, 0] == 0.5
    assert weight[0, 5] == pytest.approx(1 / 16)
    _, none = within_targets(truth, labels, torch.tensor([[False, True]]), points, 2)
    assert none[0, 5] == 0


def test_a_corner_moves_to_the_hottest_of_the_four_cells_around_it() -> None:
    heat, offset = torch.zeros(1, 1, 8, 8), torch.full((1, 2, 8, 8), 0.25)
    heat[0, 0, 3, 4] = 0.9
    heat[0, 0, 3, 1] = 0.1
    near, far = torch.tensor([[[31.0, 30.0]]]), torch.tensor([[[13.0, 30.0]]])  # centres of cells at 28, 36; 4, 12
    assert verify_corners(near, heat, offset, (8, 8))[0, 0].tolist() == [34.0, 26.0]
    assert verify_corners(far, heat, offset, (8, 8))[0, 0].tolist() == [10.0, 26.0]
    beyond = torch.tensor([[[64.0, 64.0]]])
    assert verify_corners(beyond, heat, offset, (8, 8))[0, 0].tolist() == [58.0, 58.0]


def test_corners_are_judged_over_all_levels_and_what_lies_within_by_area() -> None:
    maps = [torch.zeros(1, 1, side, side) for side in (8, 4)]
    answers = [
        {"heat": one.repeat(1, 2, 1, 1), "offset": one.repeat(1, 4, 1, 1), "within": one.repeat(1, 2, 1, 1)}
        for one in maps
    ]
    points = [
        torch.cartesian_prod((torch.arange(n) + 0.5) * s, (torch.arange(n) + 0.5) * s) for n, s in ((8, 8), (4, 16))
    ]
    truth = objects((0, 0, 32, 32), labels=[1])
    found = verification_losses(answers, truth, points, [(8, 8), (16, 16)])
    heat = sum(
        heat_loss(one["heat"], heat_targets(truth.boxes, truth.real, (8 // n, 8 // n), (8 * n, 8 * n))).item()
        for n, one in zip((1, 2), answers, strict=True)
    )
    assert found["corners"].item() == pytest.approx(0.25 * heat / 4)
    # of 32 pixels the last corner lies where the next cell begins
    assert found["corner_offsets"].item() == pytest.approx(0.0, abs=1e-6)
    each = 0.25 * math.log(2)  # of a logit of 0: half missed, squared
    inner, outer = 0.25 * each, 0.75 * each * (16 + 4 + 2 * (48 + 12)) / (16 + 4)
    assert found["within"].item() == pytest.approx(0.1 * (inner + outer))


def test_reppoints_start_as_squares_around_their_cells_and_lose_by_every_part() -> None:
    torch.manual_seed(0)
    head = RepPointsV2(channels=CHANNELS, num_classes=2, width=16, depth=1)
    maps = [torch.rand(1, 8, side, side) for side in (16, 8, 4, 2)]
    raw = head(maps)
    first = corners(raw[0]["first"], head.cells(maps, (64, 64))[0][0], (8, 8))
    assert (first[0, 9] - torch.tensor([-20.0, -20.0, 44.0, 44.0])).abs().max() < 8
    found = head.losses(maps, objects((8, 8, 40, 40), labels=[1]), (64, 64), torch.tensor([0]))
    assert set(found) == {"classes", "first_boxes", "boxes", "corners", "corner_offsets", "within"}
    sum(found.values()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in head.first.parameters())
    empty = head.losses(maps, objects((0, 0, 0, 0), labels=[-1]), (64, 64), torch.tensor([0]))
    assert empty["boxes"].item() == empty["first_boxes"].item() == 0.0
