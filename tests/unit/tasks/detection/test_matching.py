"""Boxes, anchors, and which of them are matched with which objects: hand-made cases."""

import math

import pytest
import torch

from saccade.tasks.detection.anchors import Anchors, cell_anchors, grid_anchors
from saccade.tasks.detection.boxes import best_boxes, clip, covered, decode, encode, generalized_overlap, overlaps
from saccade.tasks.detection.dense import in_crowd
from saccade.tasks.detection.losses import overlap_loss
from saccade.tasks.detection.matching import (
    NOTHING,
    UNUSED,
    draw_samples,
    ignore_hidden,
    level_by_size,
    match_by_atss,
    match_by_overlap,
    match_by_point,
    random_priorities,
)
from saccade.tasks.detection.sparse import match_one_to_one
from support.boxes import boxes, objects

NONE = torch.zeros(1, 0, 4)


# Boxes


def test_overlaps_of_known_boxes() -> None:
    first, second = boxes((0, 0, 10, 10)), boxes((0, 0, 10, 10), (5, 0, 15, 10), (20, 20, 30, 30), (3, 3, 3, 9))
    assert overlaps(first, second)[0].tolist() == pytest.approx([1.0, 1 / 3, 0.0, 0.0])
    assert covered(second[:3], first)[:, 0].tolist() == pytest.approx([1.0, 0.5, 0.0])


def test_generalized_overlap_falls_below_zero_for_boxes_apart() -> None:
    apart = generalized_overlap(boxes((0, 0, 10, 10)), boxes((20, 0, 30, 10)))
    assert apart.item() == pytest.approx(-1 / 3)  # a third of the hull, 30 x 10, is of neither
    assert overlap_loss(boxes((0, 0, 4, 4)), boxes((0, 0, 4, 4))).item() == pytest.approx(0.0)


def test_codes_are_read_back() -> None:
    anchors = boxes((10, 10, 30, 50), (0, 0, 8, 8))
    truth = boxes((12, 5, 40, 60), (1, 1, 3, 9))
    for weights in ((1.0, 1.0), (10.0, 5.0)):
        torch.testing.assert_close(decode(encode(truth, anchors, weights), anchors, weights), truth)
    assert encode(boxes((0, 0, 20, 20)), boxes((0, 0, 10, 10)))[0].tolist() == pytest.approx(
        [0.5, 0.5, math.log(2), math.log(2)]
    )


def test_clipped_boxes_stay_within_height_and_width() -> None:
    assert clip(boxes((-5, -5, 50, 50)), (20, 30))[0].tolist() == [0, 0, 30, 20]


def test_best_boxes_drop_doubles_of_a_group_alone() -> None:
    found, filled = best_boxes(
        boxes((0, 0, 10, 10), (1, 0, 11, 10), (1, 0, 11, 10), (50, 50, 60, 60))[None],
        torch.tensor([[0.8, 0.9, 0.7, 0.6]]),
        torch.tensor([[0, 0, 1, 0]]),
        torch.tensor([[True, True, True, False]]),
        overlap=0.5,
        count=3,
    )
    assert found[0, :2].tolist() == [1, 2]
    assert filled[0].tolist() == [True, True, False]


# Anchors


def test_anchors_keep_their_area_at_every_ratio() -> None:
    cell = cell_anchors([64.0], (0.5, 1.0, 2.0))
    sides = cell[:, 2:] - cell[:, :2]
    assert sides[:, 1].div(sides[:, 0]).tolist() == pytest.approx([0.5, 1.0, 2.0], rel=0.03)
    assert sides.prod(1).tolist() == pytest.approx([4096.0] * 3, rel=0.03)


def test_anchors_lie_on_their_cells_row_by_row() -> None:
    found = grid_anchors((2, 3), (8, 4), boxes((-1, -1, 1, 1)))
    assert found[:4].tolist() == [[-1, -1, 1, 1], [3, -1, 5, 1], [7, -1, 9, 1], [-1, 7, 1, 9]]


def test_kept_anchors_serve_training_after_inference() -> None:
    grid = Anchors([4.0], (1.0,))
    with torch.inference_mode():
        grid([(2, 2)], (16, 16), "cpu")
    weight = torch.ones(1, requires_grad=True)
    (grid([(2, 2)], (16, 16), "cpu")[0] * weight).sum().backward()
    assert weight.grad is not None


# Matching


def test_overlap_decides_between_object_background_and_neither() -> None:
    shared = torch.tensor([[[0.8, 0.45, 0.1, 0.0], [0.2, 0.3, 0.35, 0.0]]])
    found = match_by_overlap(shared, torch.tensor([[True, True]]), high=0.5, low=0.4)
    assert found.tolist() == [[0, UNUSED, NOTHING, NOTHING]]


def test_every_object_gets_its_best_anchor_however_little_it_overlaps() -> None:
    shared = torch.tensor([[[0.8, 0.45, 0.1], [0.2, 0.3, 0.35]]])
    found = match_by_overlap(shared, torch.tensor([[True, True]]), high=0.5, low=0.4, every_object=True)
    assert found.tolist() == [[0, UNUSED, 1]]
    unreal = match_by_overlap(shared, torch.tensor([[True, False]]), high=0.5, low=0.4, every_object=True)
    assert unreal.tolist() == [[0, UNUSED, NOTHING]]


def test_images_without_objects_match_nothing() -> None:
    anchors = boxes((0, 0, 8, 8), (8, 0, 16, 8))
    none = torch.zeros(1, 0, dtype=torch.bool)
    assert match_by_overlap(torch.zeros(1, 0, 2), none, high=0.5).tolist() == [[NOTHING] * 2]
    assert match_by_atss(NONE, none, anchors, [2]).tolist() == [[NOTHING] * 2]
    assert match_by_point(NONE, none, torch.zeros(2, 2), torch.zeros(1, 0), [2]).tolist() == [[NOTHING] * 2]


def test_atss_takes_anchors_above_mean_and_deviation_whose_centres_lie_within() -> None:
    anchors = torch.cat([grid_anchors((4, 4), (8, 8), boxes((-8, -8, 8, 8))), boxes((0, 0, 64, 64))])
    truth = boxes((4, 4, 20, 20))[None]
    found = match_by_atss(truth, torch.tensor([[True]]), anchors, [16, 1], nearest=9)[0]
    shared = overlaps(truth[0], anchors)[0]
    middle = (anchors[:, :2] + anchors[:, 2:]) / 2
    near = [*(middle[:16] - 12).norm(dim=1).topk(9, largest=False).indices.tolist(), 16]
    threshold = shared[near].mean() + shared[near].std()
    wanted = [
        place
        for place in near
        if shared[place] >= threshold and (middle[place] > 4).all() and (middle[place] < 20).all()
    ]
    assert sorted((found >= 0).nonzero()[:, 0].tolist()) == sorted(wanted)
    assert wanted


def test_an_anchor_between_two_objects_takes_the_one_it_overlaps_more() -> None:
    anchors = boxes((0, 0, 16, 16), (100, 100, 116, 116), (0, 0, 90, 90))
    truth = boxes((0, 0, 14, 16), (0, 0, 16, 16))[None]
    found = match_by_atss(truth, torch.ones(1, 2, dtype=torch.bool), anchors, [2, 1], nearest=2)
    assert found.tolist() == [[1, NOTHING, NOTHING]]


def test_background_within_a_crowd_is_left_out() -> None:
    found = objects((0, 0, 50, 50), (60, 60, 80, 80), labels=[0, 1], crowd=[True, False])
    hidden = in_crowd(boxes((5, 5, 15, 15), (40, 40, 70, 70), (60, 60, 80, 80)), found)
    assert hidden.tolist() == [[True, False, False]]
    assert ignore_hidden(torch.tensor([[NOTHING, NOTHING, 1]]), hidden).tolist() == [[UNUSED, NOTHING, 1]]
    assert found.real.tolist() == [[False, True]]


def test_samples_hold_no_more_objects_than_allowed_and_background_fills_up() -> None:
    matched = torch.tensor([[0, 1, 2, 0, NOTHING, NOTHING, NOTHING, UNUSED]])
    draws = torch.tensor([[0.1, 0.9, 0.5, 0.3, 0.2, 0.8, 0.7, 0.99]])
    place, used = draw_samples(matched, draws, count=4, positive=0.5)
    assert place.tolist() == [[1, 2, 5, 6]]
    assert used.all()
    place, used = draw_samples(matched, draws, count=8, positive=0.25)
    assert used.sum().item() == 5  # two objects, three of background; what is left out never comes in
    assert 7 not in place[used].tolist()


def test_lots_are_even_and_a_function_of_the_seed() -> None:
    drawn = random_priorities(torch.tensor([1, 2, 1]), 4096)
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert torch.histc(drawn[0], 8, 0, 1).sub(512).abs().max() < 100


def test_one_to_one_pairs_are_the_cheapest_and_no_answer_serves_twice() -> None:
    truth = objects((0, 0, 10, 10), (50, 50, 90, 90), (0, 0, 0, 0), labels=[1, 0, -1])
    answers = boxes((50, 50, 90, 88), (0, 0, 10, 11), (1, 0, 10, 10))[None]
    logits = torch.full((1, 3, 2), -3.0)
    logits[0, 2, 1] = 3.0
    found = match_one_to_one(logits, answers, truth, (100, 100))
    assert found.tolist() == [[1, -1, 0]]  # the third answers the right class where the second is as near


def test_more_objects_than_answers_leave_objects_without_one() -> None:
    truth = objects((0, 0, 10, 10), (50, 50, 90, 90), labels=[0, 0])
    found = match_one_to_one(torch.zeros(1, 1, 1), boxes((48, 50, 90, 90))[None], truth, (100, 100))
    assert found.tolist() == [[1]]


def test_a_point_belongs_to_the_nearest_object_of_its_level() -> None:
    points = torch.tensor([[4.0, 4.0], [12.0, 4.0], [8.0, 8.0]])  # two of the first level, one of the second
    truth = boxes((0, 0, 10, 10), (8, 0, 16, 9), (0, 0, 16, 16))[None]
    real, levels = torch.ones(1, 3, dtype=torch.bool), torch.tensor([[0, 0, 1]])
    assert match_by_point(truth, real, points, levels, [2, 1]).tolist() == [[0, 1, 2]]
    crossed = boxes((0, 0, 10, 10), (0, 0, 8, 8))[None]  # both are nearest to the first point; the second is nearer
    assert match_by_point(crossed, real[:, :2], points, levels[:, :2], [2, 1]).tolist() == [[1, NOTHING, NOTHING]]


def test_objects_go_to_levels_by_their_size() -> None:
    sides = [8.0, 31.0, 32.0, 64.0, 130.0, 5000.0]
    truth = torch.stack([torch.tensor([0.0, 0.0, side, side]) for side in sides])[None]
    assert level_by_size(truth, [8.0, 16.0, 32.0], cells=4.0).tolist() == [[0, 0, 0, 1, 2, 2]]
