"""Verification of corners and of what lies within boxes: the second half of RepPoints V2 (Chen et al., 2020).

Regressed corners are checked against heat maps of corners, whose cells see the corner itself.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .dense import assume_rare, start_small
from .losses import focal, smooth_l1
from .objects import Objects

LEAST_OVERLAP = 0.3  # of a box with one moved corner at which the corner still is a near miss (CornerNet)
VERIFIED = 0.5  # heat from which a cell beside a regressed corner is taken for the corner
HEAT, OFFSET, FOREGROUND = 0.25, 1.0, 0.1  # weights of the losses


class Verification(nn.Module):
    """Says of every cell whether it is a corner, where within the cell, and what object it lies in.

    Args:
        width: of the maps.
        num_classes: that objects are told apart into.
        groups: of group normalisation.
    """

    def __init__(self, width: int, num_classes: int, *, groups: int) -> None:
        super().__init__()
        self.first, self.last = (
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(groups, width), nn.ReLU())
            for _ in range(2)
        )
        self.heat, self.offset = nn.ModuleList(), nn.ModuleList()
        for _ in range(2):
            self.heat.append(nn.Conv2d(width, 1, 1))
            self.offset.append(nn.Conv2d(width, 2, 1))
        self.within = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(groups, width), nn.ReLU())
        self.classes = nn.Conv2d(width, num_classes, 1)
        self.corner_features, self.class_features = nn.Conv2d(2 * width, width, 1), nn.Conv2d(width, width, 1)
        start_small(self)
        for layer in (*self.heat, self.classes):
            assume_rare(layer)

    def forward(self, x: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return answers, B, ..., H, W, and what they add to features of boxes and of classes.

        Args:
            x: features, B, C, H, W.
        """
        first, last = pool_corner(self.first(x), first=True), pool_corner(self.last(x), first=False)
        within = self.within(x)
        found = {
            "heat": torch.cat([self.heat[0](first), self.heat[1](last)], dim=1),
            "offset": torch.cat([self.offset[0](first), self.offset[1](last)], dim=1),
            "within": self.classes(within),
        }
        inner = self.class_features(within)
        return found, self.corner_features(torch.cat([first, last], dim=1)) + inner, inner


def pool_corner(x: Tensor, *, first: bool) -> Tensor:
    """Return the highest value to the right plus the highest below, or to the left and above for the last corner."""
    if first:
        across, down = (x.flip(axis).cummax(axis).values.flip(axis) for axis in (3, 2))
    else:
        across, down = (x.cummax(axis).values for axis in (3, 2))
    return across + down


def corner_radius(boxes: Tensor) -> Tensor:
    """Return how far a corner may move, in the boxes' unit, so that the box still overlaps its own by `LEAST_OVERLAP`.

    The least of three cases: both corners move inwards, both outwards, or both the same way.
    """
    wide, high = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).unbind(-1)
    total, area, least = wide + high, wide * high, LEAST_OVERLAP
    same = (total - (total**2 - 4 * area * (1 - least) / (1 + least)).clamp(min=0).sqrt()) / 2
    inwards = (total - (total**2 - 4 * (1 - least) * area).clamp(min=0).sqrt()) / 4
    outwards = (-least * total + ((least * total) ** 2 + 4 * least * (1 - least) * area).sqrt()) / (4 * least)
    return torch.minimum(torch.minimum(same, inwards), outwards)


def heat_targets(boxes: Tensor, real: Tensor, shape: tuple[int, int], stride: tuple[float, float]) -> Tensor:
    """Return how near cells are to first and last corners, B, 2, H, W: 1 in the corner's cell, less around it.

    Args:
        boxes: B, N, 4.
        real: which there are, B, N.
        shape: height and width of the map.
        stride: pixels from cell to cell, down and across.
    """
    cells = in_cells(boxes, stride)
    deviation = ((2 * corner_radius(cells).floor() + 1) / 6)[:, :, None, None]
    down, across = (torch.arange(side, device=boxes.device) for side in shape)
    maps = []
    for corner in (cells[..., :2], cells[..., 2:]):
        column, row = cell_of(corner, shape).unbind(-1)
        squared = (across - column[..., None])[:, :, None] ** 2 + (down - row[..., None])[..., None] ** 2
        heat = torch.exp(-squared / (2 * deviation**2)) * real[:, :, None, None]
        maps.append(torch.where(squared <= (3 * deviation) ** 2, heat, 0).amax(1))
    return torch.stack(maps, dim=1)


def in_cells(boxes: Tensor, stride: tuple[float, float]) -> Tensor:
    """Return boxes in cells."""
    return torch.stack([boxes[..., 0::2] / stride[1], boxes[..., 1::2] / stride[0]], dim=-1).flatten(-2)


def cell_of(points: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return column and row of the cells that points, ..., 2, in cells, lie in."""
    column, row = points.floor().long().unbind(-1)
    return torch.stack([column.clamp(0, shape[1] - 1), row.clamp(0, shape[0] - 1)], dim=-1)


def heat_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the focal loss of heat maps, summed: what is near a corner counts little as background (CornerNet)."""
    chance = logits.sigmoid().clamp(1e-4, 1 - 1e-4)
    corner = -((1 - chance) ** 2) * chance.log() * (targets == 1)
    other = -(chance**2) * (1 - chance).log() * (1 - targets) ** 4 * (targets < 1)
    return (corner + other).sum()


def at_cells(maps: Tensor, cells: Tensor) -> Tensor:
    """Return what maps, B, C, H, W, hold in cells, B, N, 2 (column and row): B, N, C."""
    place = cells[..., 1] * maps.shape[-1] + cells[..., 0]
    return maps.flatten(2).gather(2, place[:, None].expand(-1, maps.shape[1], -1)).transpose(1, 2)


def within_targets(
    boxes: Tensor, labels: Tensor, chosen: Tensor, points: Tensor, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Return the classes of cells within boxes, B, A, K, and what each counts, B, A: all cells of an object one.

    Args:
        boxes: B, N, 4.
        labels: B, N.
        chosen: which objects belong to the map, B, N.
        points: centres of the map's cells, A, 2.
        num_classes: K.
    """
    inside = (points > boxes[:, :, None, :2]).all(-1) & (points < boxes[:, :, None, 2:]).all(-1) & chosen[..., None]
    sides = boxes[..., 2:] - boxes[..., :2]
    area = torch.where(inside, sides.prod(-1)[..., None], torch.inf)
    least, owner = area.min(1)  # the smaller of two objects is in front
    found = least < torch.inf
    count = inside.sum(-1).clamp(min=1)
    kind = F.one_hot(labels.clamp(min=0).gather(1, owner), num_classes).to(boxes.dtype) * found[..., None]
    return kind, torch.where(found, 1 / count.gather(1, owner).to(boxes.dtype), 1.0)


def verification_losses(
    answers: Sequence[dict[str, Tensor]],
    objects: Objects,
    levels: Tensor,
    points: Sequence[Tensor],
    strides: Sequence[tuple[float, float]],
) -> dict[str, Tensor]:
    """Return the losses of corners, of their places within cells, and of what lies within boxes.

    Args:
        answers: of each level.
        objects: what is there; corners are sought on every level.
        levels: of the objects, B, N.
        points: centres of each level's cells.
        strides: of each level, down and across.
    """
    boxes, real = objects.boxes, objects.real
    count = real.sum().clamp(min=1)
    heat, offset, within = boxes.new_zeros(()), boxes.new_zeros(()), boxes.new_zeros(())
    for number, (found, stride) in enumerate(zip(answers, strides, strict=True)):
        shape = (found["heat"].shape[-2], found["heat"].shape[-1])
        heat = heat + heat_loss(found["heat"], heat_targets(boxes, real, shape, stride))
        for side, corner in enumerate(in_cells(boxes, stride).split(2, dim=-1)):
            cell = cell_of(corner, shape)
            mine = at_cells(found["offset"][:, 2 * side : 2 * side + 2], cell)
            wrong = smooth_l1(mine, (corner - cell).clamp(0, 1), beta=1 / 9)
            offset = offset + torch.where(real[..., None], wrong, 0).sum()
        kind, weight = within_targets(
            boxes, objects.labels, real & (levels == number), points[number], found["within"].shape[1]
        )
        logits = found["within"].flatten(2).transpose(1, 2)
        loss = focal(logits, kind)
        own = (loss * kind * weight[..., None]).sum() / count
        within = within + own + (loss * (1 - kind)).sum() / kind.sum().clamp(min=1)
    scale = 2 * count * len(answers)
    return {
        "corners": HEAT * heat / (2 * count),
        "corner_offsets": OFFSET * offset / scale,
        "within": FOREGROUND * within / len(answers),
    }


def verify_corners(corners: Tensor, heat: Tensor, offset: Tensor, stride: tuple[float, float]) -> Tensor:
    """Return corners, B, N, 2, each moved to the verified corner of its own cell or one beside it, if there is one.

    Args:
        corners: in pixels.
        heat: chances, B, 1, H, W.
        offset: place of a corner within a cell, B, 2, H, W.
        stride: pixels from cell to cell, down and across.
    """
    shape = (heat.shape[-2], heat.shape[-1])
    scale = (stride[1], stride[0])
    cell = cell_of(torch.stack([corners[..., axis] / scale[axis] for axis in (0, 1)], dim=-1), shape)
    best, moved = torch.full_like(corners[..., 0], VERIFIED), corners
    for right in (-1, 0, 1):
        for below in (-1, 0, 1):
            column, row = (cell[..., 0] + right).clamp(0, shape[1] - 1), (cell[..., 1] + below).clamp(0, shape[0] - 1)
            near = torch.stack([column, row], dim=-1)
            value = at_cells(heat, near)[..., 0]
            place = near + at_cells(offset, near)
            place = torch.stack([place[..., axis] * scale[axis] for axis in (0, 1)], dim=-1)
            better = value > best
            best, moved = torch.where(better, value, best), torch.where(better[..., None], place, moved)
    return moved
