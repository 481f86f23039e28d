"""Detectors of the papers' tables, 80 classes: their parameters, and boxes per class in a cascade."""

import pytest
import torch

from saccade.building.build import build_model
from saccade.data.spec import InputSpec
from saccade.settings import ModelConfig
from saccade.tasks.detection.objects import Objects
from saccade.tasks.detection.roi import Cascade, MaskRCNN
from saccade.training.recipes import configure

SWIN_T, SWIN_S = "swin_tiny_patch4_window7_224", "swin_small_patch4_window7_224"
RETINA, MASK = "retinanet:more=input,anchor=4", "mask_rcnn:anchor=8"
CASCADE, SPARSE = "cascade:convs=4,per_class=true,anchor=8", "sparse_rcnn:proposals=300"
# Millions of parameters: GLMix, table 4 (RetinaNet, Mask R-CNN), and NomMer's supplement, table 2.
TABLES = {
    ("glnet_4g", RETINA): 37,
    ("glnet_9g", RETINA): 70,
    (SWIN_T, RETINA): 39,
    (SWIN_S, RETINA): 60,
    ("glnet_4g", MASK): 46.6,
    ("glnet_9g", MASK): 79.5,
    (SWIN_T, MASK): 47.8,
    (SWIN_S, MASK): 69.1,
    ("resnet50", CASCADE): 82,
    (SWIN_T, CASCADE): 86,
    ("nommer_tiny", CASCADE): 80,
    ("resnet50", "atss"): 32,
    (SWIN_T, "atss"): 36,
    ("nommer_tiny", "atss"): 30,
    ("resnet50", SPARSE): 106,
    (SWIN_T, SPARSE): 110,
    ("nommer_tiny", SPARSE): 104,
}


@pytest.mark.parametrize(("name", "head"), TABLES)
def test_detectors_weigh_what_the_papers_tables_say(name, head):
    spec = InputSpec(tuple(map(str, range(80))), 3, 224, [0.5] * 3, [0.5] * 3, task="detect")
    spec.extra["masks"] = True
    with torch.device("meta"):
        model = build_model(ModelConfig(name=name, head=head), spec, seed=0)
    weight = sum(p.numel() for p in model.parameters()) / 1e6
    assert weight == pytest.approx(TABLES[name, head], rel=0.02)


def test_recipes_have_these_heads():
    assert configure("detect_1x", {}).model.head == MASK
    assert configure("detect_3x", {}).model.head == CASCADE


def make(kind, **options):
    torch.manual_seed(0)
    small = {"width": 32, "hidden": 16, "sampled": 16, "proposals": 12, "masks": False}
    return kind(channels=(8, 8, 8, 8), num_classes=3, **small, **options)


def test_boxes_are_per_class_in_a_single_stage_and_where_a_cascade_is_asked_for_them():
    outputs = [
        [head.boxes.out_features for head in made.heads]
        for made in (make(MaskRCNN), make(Cascade), make(Cascade, per_class=True), make(MaskRCNN, per_class=False))
    ]
    assert outputs == [[12], [4, 4, 4], [12, 12, 12], [4]]


def test_stages_of_a_cascade_refine_boxes_by_the_class_that_each_finds_most_likely():
    made, agnostic = make(Cascade, per_class=True).eval(), make(Cascade).eval()
    agnostic.load_state_dict({n: v for n, v in made.state_dict().items() if "boxes" not in n[:14]}, strict=False)
    maps = [torch.randn(1, 8, side, side) for side in (16, 8, 4, 2)]
    for one, other in zip(made.heads, agnostic.heads, strict=True):
        one.classes.bias.data = torch.tensor([0.0, 0.0, 9.0, 0.0])  # the second class, after the background
        other.classes.load_state_dict(one.classes.state_dict())
        other.layers.load_state_dict(one.layers.state_dict())
        torch.nn.init.normal_(one.boxes.weight, std=0.02)
        other.boxes.weight.data, other.boxes.bias.data = one.boxes.weight[4:8].clone(), one.boxes.bias[4:8].clone()
    mine, theirs = made.find(maps, (64, 64)), agnostic.find(maps, (64, 64))
    likely, same = mine.labels[0] == 1, theirs.labels[0] == 1
    assert likely.any()
    torch.testing.assert_close(mine.boxes[0][likely], theirs.boxes[0][same])


def test_a_cascade_with_boxes_per_class_learns_in_all_stages():
    made = make(Cascade, per_class=True)
    maps = [torch.randn(2, 8, side, side) for side in (16, 8, 4, 2)]
    boxes = torch.tensor([[[4.0, 4, 30, 30]], [[20, 20, 60, 50]]])
    objects = Objects(boxes, torch.tensor([[2], [0]]), torch.zeros(2, 1, dtype=torch.bool), None)
    losses = made.losses(maps, objects, (64, 64), torch.tensor([1, 2]))
    sum(losses.values()).backward()
    assert {name for name in losses if name.startswith("boxes")} == {"boxes_1", "boxes_2", "boxes_3"}
    for head in made.heads:
        moved = head.boxes.weight.grad.view(3, 4, -1).abs().sum((1, 2)) > 0
        assert moved.tolist() == [True, False, True]  # there are objects of the first and the last class
