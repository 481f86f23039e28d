"""Verification of corners and box interiors in RepPoints V2 (Chen et al., 2020).

Regressed corners are refined by corner heat maps. Layers, targets and loss weights are those of the authors' code with
GIoU, except that a cell in several boxes belongs to the smallest only.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .dense import assume_rare, even_groups, start_small
from .losses import focal, smooth_l1
from .objects import Objects

LEAST_OVERLAP = 0.7  # least IoU of a box with a moved corner that counts as a near miss
HEAT, OFFSET, FOREGROUND = 0.25, 1.0, 0.1  # weights of the losses
SAID = 6  # corner maps: two heat maps, four offsets


def block(inputs: int, outputs: int, kernel: int, *, groups: int, relu: bool = True) -> nn.Sequential:
    """Return a convolution with group normalisation, and optionally ReLU."""
    layers = [nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False), nn.GroupNorm(groups, outputs)]
    return nn.Sequential(*layers, *([nn.ReLU()] if relu else []))


class CornerPool(nn.Module):
    """Corner pooling (CornerNet): maxima to the right and below, or to the left and above.

    Args:
        first: whether for top-left corners, instead of bottom-right ones.
    """

    def __init__(self, width: int, *, first: bool, groups: int) -> None:
        super().__init__()
        self.first, inner = first, max(width // 4, 1)
        own = even_groups(groups, inner)
        self.across, self.down = (block(width, inner, 3, groups=own) for _ in range(2))
        self.pooled = block(inner, width, 3, groups=groups, relu=False)
        self.beside = block(width, width, 1, groups=groups, relu=False)
        self.out = block(width, width, 1, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        """Return corner features, B, C, H, W."""
        pooled = pool_corner(self.across(x), self.down(x), first=self.first)
        return self.out(F.relu(self.pooled(pooled) + self.beside(x)))


class Verification(nn.Module):
    """Predicts for every cell corner heat, corner offset, and the class of the enclosing object."""

    def __init__(self, width: int, num_classes: int, *, groups: int) -> None:
        super().__init__()
        self.shared = block(width, width, 3, groups=groups)
        self.classes = nn.Conv2d(width, num_classes, 1)
        self.within = block(width, width, 1, groups=groups)
        self.pools, self.heat, self.offset = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for first in (True, False):
            self.pools.append(CornerPool(width, first=first, groups=groups))
            self.heat.append(nn.Conv2d(width, 1, 3, padding=1))
            self.offset.append(nn.Conv2d(width, 2, 3, padding=1))
        for part in (self.shared, self.classes, self.heat, self.offset):
            start_small(part)
        for layer in (*self.heat, self.classes):
            assume_rare(layer)

    def forward(self, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return predictions, B, ..., H, W, and features to add to those of boxes and classes."""
        shared = self.shared(x)
        within = self.within(shared)
        seen = [pool(shared + within) for pool in self.pools]
        found = {
            name: torch.cat([layer(one) for layer, one in zip(layers, seen, strict=True)], dim=1)
            for name, layers in (("heat", self.heat), ("offset", self.offset))
        }
        return found | {"within": self.classes(shared)}, within


def pool_corner(across: Tensor, down: Tensor, *, first: bool) -> Tensor:
    """Return the maximum to the right plus the maximum below, or to the left and above for the last corner."""
    if first:
        return across.flip(3).cummax(3).values.flip(3) + down.flip(2).cummax(2).values.flip(2)
    return across.cummax(3).values + down.cummax(2).values


def corner_radius(boxes: Tensor) -> Tensor:
    """Return the largest shift of a corner for which the box still has an IoU of `LEAST_OVERLAP`.

    The minimum over three cases: both corners move inwards, outwards, or in the same direction.
    """
    wide, high = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).unbind(-1)
    total, area, least = wide + high, wide * high, LEAST_OVERLAP
    same = (total - (total**2 - 4 * area * (1 - least) / (1 + least)).clamp(min=0).sqrt()) / 2
    inwards = (total - (total**2 - 4 * (1 - least) * area).clamp(min=0).sqrt()) / 4
    outwards = (-least * total + ((least * total) ** 2 + 4 * least * (1 - least) * area).sqrt()) / (4 * least)
    return torch.minimum(torch.minimum(same, inwards), outwards)


def heat_targets(boxes: Tensor, real: Tensor, shape: tuple[int, int], stride: tuple[float, float]) -> Tensor:
    """Return heat map targets of first and last corners, B, 2, H, W: 1 in the corner's cell, decreasing around it.

    Args:
        shape: height and width of the map.
        stride: vertical and horizontal stride in pixels.
    """
    radius = corner_radius(boxes)[:, :, None, None]
    down, across = (torch.arange(side, device=boxes.device) for side in shape)
    maps = []
    for corner in boxes.split(2, dim=-1):
        column, row = cell_of(in_cells(corner, stride), shape).unbind(-1)
        own = (across == column[..., None])[:, :, None] & (down == row[..., None])[..., None]
        right, below = (across + 0.5) * stride[1] - corner[..., :1], (down + 0.5) * stride[0] - corner[..., 1:]
        squared = right[:, :, None] ** 2 + below[..., None] ** 2
        near = torch.where(squared < radius**2, torch.exp(-18 * squared / (2 * radius + 1) ** 2), 0)
        maps.append((torch.where(own, 1.0, near) * real[:, :, None, None]).amax(1))
    return torch.stack(maps, dim=1)


def in_cells(boxes: Tensor, stride: tuple[float, float]) -> Tensor:
    """Convert boxes or points to cell units."""
    return torch.stack([boxes[..., 0::2] / stride[1], boxes[..., 1::2] / stride[0]], dim=-1).flatten(-2)


def cell_of(points: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return column and row of the cells that contain points, ..., 2, in cell units."""
    column, row = points.floor().long().unbind(-1)
    return torch.stack([column.clamp(0, shape[1] - 1), row.clamp(0, shape[0] - 1)], dim=-1)


def heat_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the summed focal loss of heat maps, with reduced weight near corners (CornerNet)."""
    chance = logits.sigmoid().clamp(1e-4, 1 - 1e-4)
    corner = -((1 - chance) ** 2) * chance.log() * (targets == 1)
    other = -(chance**2) * (1 - chance).log() * (1 - targets) ** 4 * (targets < 1)
    return (corner + other).sum()


def at_cells(maps: Tensor, cells: Tensor) -> Tensor:
    """Gather maps, B, C, H, W, at cells, B, N, 2 (column and row): B, N, C."""
    place = cells[..., 1] * maps.shape[-1] + cells[..., 0]
    return maps.flatten(2).gather(2, place[:, None].expand(-1, maps.shape[1], -1)).transpose(1, 2)


def within_targets(
    boxes: Tensor, labels: Tensor, real: Tensor, points: Tensor, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Return the classes of cells inside boxes, B, A, K, and their weights, B, A, smaller for large objects.

    Args:
        points: centres of the map's cells, A, 2.
    """
    inside = (points > boxes[:, :, None, :2]).all(-1) & (points < boxes[:, :, None, 2:]).all(-1) & real[..., None]
    sides = boxes[..., 2:] - boxes[..., :2]
    area = torch.where(inside, sides.prod(-1)[..., None], torch.inf)
    least, owner = area.min(1)  # the smallest object wins
    found = least < torch.inf
    kind = F.one_hot(labels.clamp(min=0).gather(1, owner), num_classes).to(boxes.dtype) * found[..., None]
    return kind, torch.where(found, 1 / least.clamp(min=1), 0)


def verification_losses(
    answers: Sequence[dict[str, Tensor]],
    objects: Objects,
    points: Sequence[Tensor],
    strides: Sequence[tuple[float, float]],
) -> dict[str, Tensor]:
    """Return the losses of corner heat, corner offsets and box interiors.

    Args:
        objects: objects, which are all used on every level.
    """
    boxes, real = objects.boxes, objects.real
    heat, offset = boxes.new_zeros(()), boxes.new_zeros(())
    logits, kinds, weights = [], [], []
    for found, stride, at in zip(answers, strides, points, strict=True):
        shape = (found["heat"].shape[-2], found["heat"].shape[-1])
        heat = heat + heat_loss(found["heat"], heat_targets(boxes, real, shape, stride))
        for side, corner in enumerate(in_cells(boxes, stride).split(2, dim=-1)):
            cell = cell_of(corner, shape)
            mine = at_cells(found["offset"][:, 2 * side : 2 * side + 2], cell)
            wrong = smooth_l1(mine, (corner - cell).clamp(0, 1), beta=1 / 9)
            offset = offset + torch.where(real[..., None], wrong, 0).sum()
        kind, weight = within_targets(boxes, objects.labels, real, at, found["within"].shape[1])
        logits.append(found["within"].flatten(2).transpose(1, 2))
        kinds.append(kind)
        weights.append(weight)
    kind, weight = torch.cat(kinds, dim=1), torch.cat(weights, dim=1)
    loss = focal(torch.cat(logits, dim=1), kind)
    inner = (loss * kind * weight[..., None]).sum() / weight.sum().clamp(min=1e-9)
    outer = (loss * (1 - kind)).sum() / kind.sum().clamp(min=1)
    count = 2 * len(answers) * real.sum().clamp(min=1)  # corners on all levels
    return {
        "corners": HEAT * heat / count,
        "corner_offsets": OFFSET * offset / count,
        "within": FOREGROUND * (inner + outer),
    }


def verify_corners(corners: Tensor, heat: Tensor, offset: Tensor, stride: tuple[float, float]) -> Tensor:
    """Refine corners, B, N, 2: move each to the corner predicted by the hottest of its four nearest cells.

    Args:
        heat: probabilities, B, 1, H, W.
        offset: corner offset within a cell, B, 2, H, W.
        stride: vertical and horizontal stride in pixels.
    """
    shape = (heat.shape[-2], heat.shape[-1])
    scale = corners.new_tensor((stride[1], stride[0]))
    best, moved = torch.full_like(corners[..., 0], -1.0), corners
    for right in (-0.5, 0.5):
        for below in (-0.5, 0.5):
            cell = cell_of(corners / scale + corners.new_tensor((right, below)), shape)
            value = at_cells(heat, cell)[..., 0]
            better = value > best
            best = torch.where(better, value, best)
            moved = torch.where(better[..., None], (cell + at_cells(offset, cell)) * scale, moved)
    return moved
