"""RepPoints V2: nine points per object, two of them its corners, regressed twice and then verified.

The points are from Yang et al., 2019; explicit corners and their verification from Chen et al., 2020.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .anchors import centre_points
from .boxes import clip, take
from .corners import SAID, Verification, verification_losses, verify_corners
from .dense import (
    assume_rare,
    best_of_levels,
    class_targets,
    even_groups,
    in_crowd,
    of_matched,
    pyramid_shapes,
    start_small,
    tower,
)
from .fpn import FPN
from .losses import focal, mean_where, overlap_loss
from .matching import UNUSED, ignore_hidden, level_by_size, match_by_atss, match_by_point
from .objects import Detections, Head, Objects

KERNEL = 3
POINTS = KERNEL**2
SOFTER = 0.1  # factor on the gradient from sampling positions to points
REACH = 4.0  # initial distance of corners from a cell, in cells


class PointConv(nn.Module):
    """A deformable convolution that samples at given points."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, inputs, KERNEL, KERNEL) * 0.01)
        self.out = nn.Conv2d(width, outputs, 1)
        start_small(self.out)

    def forward(self, x: Tensor, points: Tensor) -> Tensor:
        """Convolve at points, B, 2 * points, H, W: alternating vertical and horizontal offsets in cells."""
        return self.out(F.relu(convolve_at(x, points, self.weight)))


def convolve_at(x: Tensor, points: Tensor, weight: Tensor) -> Tensor:
    """Convolve a map at points, with zero padding; return B, outputs, H, W.

    torchvision's `deform_conv2d` always runs on the default stream, which is a race when steps are captured
    (pytorch/vision#9513).

    Args:
        x: the map, B, inputs, H, W.
        points: as for `PointConv`.
        weight: outputs, inputs, kernel, kernel.
    """
    height, width = x.shape[-2:]
    down = torch.arange(height, device=x.device)[:, None, None] + points[:, 0::2].permute(0, 2, 3, 1).float()
    across = torch.arange(width, device=x.device)[:, None] + points[:, 1::2].permute(0, 2, 3, 1).float()
    grid = torch.stack([(2 * across + 1) / width - 1, (2 * down + 1) / height - 1], dim=-1)
    seen = F.grid_sample(x.float(), grid.flatten(1, 2), align_corners=False)  # B, inputs, H * W, points
    return F.conv2d(seen, weight.flatten(2)[:, :, None]).unflatten(2, (height, width))[..., 0]


class RepPointsV2(Head):
    """The RepPoints V2 head.

    Args:
        width: channels of the pyramid and the head.
        depth: convolutions before each output.
        groups: groups of group normalisation.
        more: see `FPN`; two coarser maps.
        anchor: object size of a level, in cells.
    """

    overlap, candidates = 0.6, 1000
    start: Tensor

    def __init__(
        self,
        *,
        channels: Sequence[int],
        num_classes: int,
        width: int = 256,
        depth: int = 3,
        groups: int = 32,
        more: str = "input",
        anchor: float = 4.0,
    ) -> None:
        super().__init__()
        self.num_classes, self.anchor = num_classes, anchor
        self.fpn = FPN(channels[-3:], width, more=more)
        self.class_tower, self.box_tower = tower(width, depth, groups=groups), tower(width, depth, groups=groups)
        self.verification = Verification(width, num_classes, groups=even_groups(groups, width))
        self.first = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2 * POINTS, 1))
        self.second = PointConv(width + SAID, width, 2 * POINTS)
        self.classes = PointConv(width + SAID, width, num_classes)
        for part in (self.class_tower, self.box_tower, self.first):
            start_small(part)
        assume_rare(self.classes.out)
        steps = torch.arange(KERNEL, dtype=torch.float32) - KERNEL // 2
        start = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), dim=-1).flatten()  # vertical and horizontal
        start[:4] = REACH * torch.tensor([-1.0, -1.0, 1.0, 1.0])  # the first two points are the corners
        self.register_buffer("start", start[:, None, None], persistent=False)

    def forward(self, maps: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """Return raw outputs of each level, B, ..., H, W: "first" and "second" points in cells, "logits", and more."""
        return [self._level(one) for one in self.fpn(maps[-3:])]

    def _level(self, x: Tensor) -> dict[str, Tensor]:
        kinds, places = self.class_tower(x), self.box_tower(x)
        verified, within = self.verification(places)
        kinds, places = kinds + within, places + within
        first = self.first(places).float() + self.start
        soft = SOFTER * first + (1 - SOFTER) * first.detach()
        said = [verified["heat"], verified["offset"]]
        second = self.second(torch.cat([places, *said], dim=1), soft).float() + first.detach()
        logits = self.classes(torch.cat([kinds, *said], dim=1), soft)
        found = {"first": first, "second": second, "logits": logits} | verified
        return {name: value.float() for name, value in found.items()}

    def losses(
        self, maps: Sequence[Tensor], objects: Objects, size: tuple[int, int], seeds: Tensor
    ) -> dict[str, Tensor]:
        """Return the losses of both sets of points, classes and verification."""
        raw, (points, strides) = self(maps), self.cells(maps, size)
        counts = [len(one) for one in points]
        first, second = (
            torch.cat([corners(one[key], at, by) for one, at, by in zip(raw, points, strides, strict=True)], dim=1)
            for key in ("first", "second")
        )
        levels = level_by_size(objects.boxes, [by[0] for by in strides], cells=self.anchor)
        near = match_by_point(objects.boxes, objects.real, torch.cat(points), levels, counts)
        good = match_by_atss(objects.boxes, objects.real, first.detach(), counts)
        good = ignore_hidden(good, in_crowd(first.detach(), objects))
        target, wanted = class_targets(objects, good, self.num_classes)
        positive = good >= 0
        logits = torch.cat([one["logits"].flatten(2).transpose(1, 2) for one in raw], dim=1)
        return {
            "classes": mean_where(focal(logits, target), good != UNUSED, over=positive.sum()),
            "first_boxes": mean_where(overlap_loss(first, of_matched(objects, near)[1]), near >= 0),
            "boxes": 2 * mean_where(overlap_loss(second, wanted), positive),
        } | verification_losses(raw, objects, points, strides)

    def answers(self, maps: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
        """Return the best answers of each level, B, M, 6: box, score and class; overlapping ones are all there yet."""
        raw, (points, strides) = self(maps), self.cells(maps, size)
        scores = [one["logits"].sigmoid().flatten(2).transpose(1, 2) for one in raw]
        found = []
        for number, (one, score, at, by) in enumerate(zip(raw, scores, points, strides, strict=True)):
            value, place, label = best_of_levels(score, [len(at)], self.candidates)
            box = clip(take(corners(one["second"], at, by), place), size)
            if number:  # the finest level is not verified; others use the next finer map
                finer = 0 if number < 3 else 1
                heat, offset = raw[finer]["heat"].sigmoid(), raw[finer]["offset"]
                moved = [
                    verify_corners(corner, heat[:, side : side + 1], offset[:, 2 * side : 2 * side + 2], strides[finer])
                    for side, corner in enumerate(box.split(2, dim=-1))
                ]
                box = clip(torch.cat([torch.minimum(*moved), torch.maximum(*moved)], dim=-1), size)
            found.append(Detections(box, value, label).rows())
        return torch.cat(found, dim=1)

    def cells(self, maps: Sequence[Tensor], size: tuple[int, int]) -> tuple[list[Tensor], list[tuple[float, float]]]:
        """Return the cell centres of each level, A, 2, and its vertical and horizontal stride in pixels."""
        shapes = pyramid_shapes(maps[-3:], self.fpn.levels)
        strides = [(size[0] / shape[0], size[1] / shape[1]) for shape in shapes]
        points = [centre_points(shape, by, device=maps[0].device) for shape, by in zip(shapes, strides, strict=True)]
        return points, strides


def corners(points: Tensor, centres: Tensor, stride: tuple[float, float]) -> Tensor:
    """Return the boxes between the first two points of each cell, B, A, 4, in pixels.

    Args:
        points: alternating vertical and horizontal offsets in cells, B, 2 * points, H, W.
        centres: cell centres in pixels, A, 2.
        stride: vertical and horizontal stride in pixels.
    """
    first, last = (
        torch.stack([points[:, place + 1] * stride[1], points[:, place] * stride[0]], dim=-1).flatten(1, 2) + centres
        for place in (0, 2)
    )
    return torch.cat([torch.minimum(first, last), torch.maximum(first, last)], dim=-1)
