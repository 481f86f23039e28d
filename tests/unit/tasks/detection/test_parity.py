"""RetinaNet and Mask R-CNN against torchvision's own: same weights in, same losses and boxes out."""

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN as TheirMaskRCNN
from torchvision.models.detection import RetinaNet as TheirRetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign, deform_conv2d
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool, LastLevelP6P7

from saccade.tasks.detection.dense import RetinaNet
from saccade.tasks.detection.detector import read_answers
from saccade.tasks.detection.fpn import FPN
from saccade.tasks.detection.objects import Objects
from saccade.tasks.detection.reppoints import convolve_at
from saccade.tasks.detection.roi import MaskRCNN

SIDE, CLASSES, WIDTH = 160, 5, 32
SIZE = (SIDE, SIDE)
RATIOS = ((0.5, 1.0, 2.0),) * 5
PLAIN = {"min_size": SIDE, "max_size": SIDE, "image_mean": [0.0] * 3, "image_std": [1.0] * 3}
MANY = 100_000  # samples of an image, so that none is drawn by lot


class Column(nn.Module):
    """A few convolutions, each a map."""

    def __init__(self, first: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        sides = [first] + [2] * (len(widths) - 1)
        ins = (3, *widths[:-1])
        self.layers = nn.ModuleList(nn.Conv2d(a, b, s, s) for a, b, s in zip(ins, widths, sides, strict=True))

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the maps."""
        found = []
        for layer in self.layers:
            x = layer(x).relu()
            found.append(x)
        return found


class ForThem(nn.Module):
    """The same maps and pyramid as torchvision asks for them."""

    out_channels = WIDTH

    def __init__(self, column: nn.Module, fpn: nn.Module) -> None:
        super().__init__()
        self.column, self.fpn = column, fpn

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return the pyramid's maps by name."""
        return {str(number): one for number, one in enumerate(self.fpn(self.column(x)))}


def convolutions(part: nn.Module) -> list[nn.Conv2d]:
    return [module for module in part.modules() if isinstance(module, nn.Conv2d)]


def copy_all(ours: nn.Module, theirs: nn.Module) -> None:
    for mine, other in zip(convolutions(ours), convolutions(theirs), strict=True):
        other.load_state_dict(mine.state_dict())


def draw_weights(part: nn.Module, std: float) -> None:
    for module in part.modules():
        if isinstance(module, nn.Conv2d | nn.Linear | nn.ConvTranspose2d):
            nn.init.normal_(module.weight, std=std)
            nn.init.normal_(module.bias, std=0.1)


@pytest.fixture
def images() -> Tensor:
    return torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def objects() -> Objects:
    empty = [0, 0, 0, 0]
    boxes = torch.tensor(
        [[[10, 10, 60, 70], [80, 20, 150, 120], [5, 100, 50, 150]], [[30, 30, 100, 90], empty, empty]],
        dtype=torch.float32,
    )
    labels = torch.tensor([[1, 3, 0], [2, -1, -1]])
    masks = torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(2)) > 0.5
    return Objects(boxes, labels, torch.zeros_like(labels).bool(), masks)


def their_targets(objects: Objects, *, first: int) -> list[dict[str, Tensor]]:
    assert objects.masks is not None
    rows = [objects.labels[number] >= 0 for number in range(2)]
    return [
        {
            "boxes": objects.boxes[number, row],
            "labels": objects.labels[number, row] + first,
            "masks": objects.masks[number, row].to(torch.uint8),
        }
        for number, row in enumerate(rows)
    ]


def assert_same_answers(mine: Any, theirs: list[dict[str, Tensor]], *, first: int) -> None:
    assert any(len(one["boxes"]) for one in theirs)
    for number, one in enumerate(theirs):
        count = len(one["boxes"])
        assert int((mine.labels[number] >= 0).sum()) == count
        torch.testing.assert_close(mine.boxes[number, :count], one["boxes"], atol=1e-3, rtol=1e-4)
        torch.testing.assert_close(mine.scores[number, :count], one["scores"], atol=1e-4, rtol=1e-4)
        assert torch.equal(mine.labels[number, :count] + first, one["labels"])


@pytest.mark.parametrize(
    ("more", "last"),
    [("pool", LastLevelMaxPool()), ("coarsest", LastLevelP6P7(8, 8)), ("input", LastLevelP6P7(5, 8)), ("none", None)],
)
def test_pyramid_is_torchvisions(more: str, last: Any) -> None:
    torch.manual_seed(0)
    ours, theirs = FPN([3, 4, 5], 8, more=more), FeaturePyramidNetwork([3, 4, 5], 8, extra_blocks=last)
    copy_all(ours, theirs)
    maps = [torch.rand(2, width, 23 // part, 17 // part) for width, part in ((3, 1), (4, 2), (5, 4))]
    other = theirs(OrderedDict((str(number), one) for number, one in enumerate(maps)))
    for mine, their in zip(ours(maps), other.values(), strict=True):
        torch.testing.assert_close(mine, their, atol=1e-4, rtol=1e-4)


def test_retinanet_is_torchvisions(images: Tensor, objects: Objects) -> None:
    torch.manual_seed(0)
    column = Column(8, (16, 24, 40))
    ours = RetinaNet(channels=[16, 24, 40], num_classes=CLASSES, width=WIDTH)
    sizes = tuple(tuple(side * 2 ** (part / 3) for part in range(3)) for side in (32.0, 64.0, 128.0, 256.0, 512.0))
    theirs = TheirRetinaNet(
        ForThem(column, ours.fpn), CLASSES, anchor_generator=AnchorGenerator(sizes, RATIOS), **PLAIN
    )
    for part in (ours.class_tower, ours.box_tower):
        draw_weights(part, 0.1)
    for part in (ours.classes, ours.boxes):
        nn.init.normal_(part.weight, std=0.2)
    nn.init.constant_(ours.classes.bias, -1.0)
    copy_all(ours.class_tower, theirs.head.classification_head.conv)
    copy_all(ours.box_tower, theirs.head.regression_head.conv)
    copy_all(ours.classes, theirs.head.classification_head.cls_logits)
    copy_all(ours.boxes, theirs.head.regression_head.bbox_reg)
    maps = column(images)
    mine = ours.losses(maps, objects, SIZE, torch.zeros(2, dtype=torch.int64))
    other = theirs.train()(list(images), their_targets(objects, first=0))
    torch.testing.assert_close(mine["classes"], other["classification"], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(mine["boxes"], other["bbox_regression"], atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        found = read_answers(ours.answers(maps, SIZE), overlap=ours.overlap, least=ours.least, kept=ours.kept)
        assert_same_answers(found, theirs.eval()(list(images)), first=0)


def test_mask_rcnn_is_torchvisions(images: Tensor, objects: Objects) -> None:
    torch.manual_seed(0)
    column, hidden = Column(4, (8, 16, 24, 40)), 64
    ours = MaskRCNN(
        channels=[8, 16, 24, 40], num_classes=CLASSES, width=WIDTH, hidden=hidden, sampled=300, positive=0.5
    )
    ours.rpn.sampled = MANY
    names = ["0", "1", "2", "3"]
    theirs = TheirMaskRCNN(
        ForThem(column, ours.fpn),
        rpn_anchor_generator=AnchorGenerator(((32,), (64,), (128,), (256,), (512,)), RATIOS),
        box_roi_pool=MultiScaleRoIAlign(names, 7, 2),
        box_head=TwoMLPHead(WIDTH * 49, hidden),
        box_predictor=FastRCNNPredictor(hidden, CLASSES + 1),
        mask_roi_pool=MultiScaleRoIAlign(names, 14, 2),
        mask_head=MaskRCNNHeads(WIDTH, (WIDTH,) * 4, 1),
        mask_predictor=MaskRCNNPredictor(WIDTH, WIDTH, CLASSES + 1),
        rpn_batch_size_per_image=MANY,
        box_batch_size_per_image=300,
        box_positive_fraction=0.5,
        rpn_post_nms_top_n_train=200,
        rpn_post_nms_top_n_test=200,
        **PLAIN,
    )
    ours.rpn.proposals = 200
    draw_weights(ours, 0.08)
    copy_all(ours.rpn.conv, theirs.rpn.head.conv)
    copy_all(ours.rpn.objects, theirs.rpn.head.cls_logits)
    copy_all(ours.rpn.boxes, theirs.rpn.head.bbox_pred)
    copy_box_head(ours.heads[0], theirs.roi_heads)
    copy_mask_head(ours.mask_heads[0], theirs.roi_heads)
    maps = column(images)
    mine = ours.train().losses(maps, objects, SIZE, torch.tensor([1, 2]))
    other = theirs.train()(list(images), their_targets(objects, first=1))
    names_of = {
        "rpn_objects": "loss_objectness",
        "rpn_boxes": "loss_rpn_box_reg",
        "classes": "loss_classifier",
        "boxes": "loss_box_reg",
        "masks": "loss_mask",
    }
    assert set(mine) == set(names_of)
    for name, their_name in names_of.items():
        torch.testing.assert_close(mine[name], other[their_name], atol=1e-4, rtol=1e-4, msg=name)
    cells: list[Tensor] = []  # before they are pasted into the image
    theirs.roi_heads.register_forward_hook(lambda *heard: cells.extend(one["masks"].clone() for one in heard[-1][0]))
    with torch.no_grad():
        found, answers = ours.eval().find(maps, SIZE), theirs.eval()(list(images))
        assert_same_answers(found, answers, first=1)
    for number, one in enumerate(cells):
        torch.testing.assert_close(found.masks[number, : len(one)], one[:, 0], atol=1e-4, rtol=1e-4)


def copy_box_head(head: Any, theirs: Any) -> None:
    theirs.box_head.fc6.load_state_dict(head.layers[1].state_dict())
    theirs.box_head.fc7.load_state_dict(head.layers[3].state_dict())
    theirs.box_predictor.cls_score.load_state_dict(head.classes.state_dict())
    with torch.no_grad():  # theirs has boxes of the background too
        theirs.box_predictor.bbox_pred.weight[4:] = head.boxes.weight
        theirs.box_predictor.bbox_pred.bias[4:] = head.boxes.bias


def copy_mask_head(head: Any, theirs: Any) -> None:
    theirs.mask_predictor.conv5_mask.load_state_dict(head.layers[8].state_dict())
    copy_all(head.layers, theirs.mask_head)
    with torch.no_grad():
        theirs.mask_predictor.mask_fcn_logits.weight[1:] = head.masks.weight
        theirs.mask_predictor.mask_fcn_logits.bias[1:] = head.masks.bias


def test_convolution_at_points_is_torchvisions() -> None:
    draws = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 5, 7, 9, generator=draws), torch.randn(4, 5, 3, 3, generator=draws)
    points = 4 * torch.randn(2, 18, 7, 9, generator=draws)  # some lie beyond the map
    steps = torch.arange(3.0) - 1
    square = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), dim=-1).flatten()[:, None, None]
    mine, theirs = (one.clone().requires_grad_() for one in (points, points))
    ours = convolve_at(x, mine, weight)
    other = deform_conv2d(x, theirs - square, weight, padding=1)
    torch.testing.assert_close(ours, other, atol=1e-4, rtol=1e-4)
    ours.square().sum().backward()
    other.square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-3, rtol=1e-3)
