"""What heads are to find, and what they lose: hand-made cases."""

import math

import pytest
import torch

from saccade.tasks.detection.anchors import Anchors, cell_anchors, grid_anchors
from saccade.tasks.detection.boxes import best_boxes, clip, covered, decode, encode, generalized_overlap, overlaps
from saccade.tasks.detection.corners import (
    corner_radius,
    heat_loss,
    heat_targets,
    pool_corner,
    verification_losses,
    verify_corners,
    within_targets,
)
from saccade.tasks.detection.dense import ATSS, RetinaNet, centredness, in_crowd
from saccade.tasks.detection.fpn import FPN, level_of, look_at, pack
from saccade.tasks.detection.losses import focal, mean_where, overlap_loss, smooth_l1
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
from saccade.tasks.detection.objects import Objects
from saccade.tasks.detection.reppoints import RepPointsV2, corners
from saccade.tasks.detection.roi import OVERLAPS, Cascade, MaskRCNN
from saccade.tasks.detection.sparse import SparseRCNN, match_one_to_one

CHANNELS = (8, 8, 8, 8)
NONE = torch.zeros(1, 0, 4)


def boxes(*rows: tuple[float, float, float, float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def objects(*rows: tuple[float, float, float, float], labels: list[int], crowd: list[bool] | None = None) -> Objects:
    hidden = torch.tensor([crowd or [False] * len(labels)])
    return Objects(boxes(*rows)[None], torch.tensor([labels]), hidden)


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
    from torchvision.ops import roi_align

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
