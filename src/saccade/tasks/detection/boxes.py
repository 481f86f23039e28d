"""Boxes: their overlap, their coding against anchors, and the best of many; corners x0, y0, x1, y1 in pixels.

All take batches, ..., N, 4, and give as many rows as they were given, so that shapes stay the same from step to step.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import batched_nms

WIDEST = math.log(1000 / 16)  # of a code, so that a box never grows without bound
SMALLEST = 1e-2  # pixels a side of a box that is kept


def areas(boxes: Tensor) -> Tensor:
    """Return the areas, ..., N; none is negative."""
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


def centres(boxes: Tensor) -> Tensor:
    """Return the centres, ..., N, 2."""
    return (boxes[..., :2] + boxes[..., 2:]) / 2


def intersections(first: Tensor, second: Tensor) -> Tensor:
    """Return the area that each box of one set shares with each of the other, ..., N, M."""
    low = torch.maximum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.minimum(first[..., :, None, 2:], second[..., None, :, 2:])
    sides = (high - low).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


def overlaps(first: Tensor, second: Tensor) -> Tensor:
    """Return the intersection over union of each box of one set with each of the other, ..., N, M."""
    shared = intersections(first, second)
    return _over(shared, areas(first)[..., :, None] + areas(second)[..., None, :] - shared)


def covered(boxes: Tensor, regions: Tensor) -> Tensor:
    """Return how much of each box lies in each region, as a part of the box, ..., N, M."""
    return _over(intersections(boxes, regions), areas(boxes)[..., :, None].expand(*boxes.shape[:-1], regions.shape[-2]))


def generalized_overlap(first: Tensor, second: Tensor) -> Tensor:
    """Return the generalized intersection over union of boxes pair by pair, ..., N; from -1 to 1."""
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    sides = (high - low).clamp(min=0)
    shared = sides[..., 0] * sides[..., 1]
    union = areas(first) + areas(second) - shared
    around = torch.maximum(first[..., 2:], second[..., 2:]) - torch.minimum(first[..., :2], second[..., :2])
    hull = around[..., 0] * around[..., 1]
    return _over(shared, union) - _over(hull - union, hull)


def encode(boxes: Tensor, anchors: Tensor, weights: tuple[float, float] = (1.0, 1.0)) -> Tensor:
    """Return the shift of the centre and the logarithm of the sides, in terms of anchors, ..., N, 4.

    Args:
        boxes: to be coded; those without area are coded as if they had a little.
    """
    sides, own = anchors[..., 2:] - anchors[..., :2], (boxes[..., 2:] - boxes[..., :2]).clamp(min=SMALLEST)
    shift = (centres(boxes) - centres(anchors)) / sides
    return torch.cat([shift * weights[0], (own / sides).log() * weights[1]], dim=-1)


def decode(codes: Tensor, anchors: Tensor, weights: tuple[float, float] = (1.0, 1.0)) -> Tensor:
    """Return the boxes, ..., N, 4, that `encode` made codes of."""
    sides = anchors[..., 2:] - anchors[..., :2]
    middle = centres(anchors) + codes[..., :2] / weights[0] * sides
    half = (codes[..., 2:] / weights[1]).clamp(max=WIDEST).exp() * sides / 2
    return torch.cat([middle - half, middle + half], dim=-1)


def clip(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Return boxes cut to an image of a height and a width."""
    height, width = size
    across, down = boxes[..., 0::2].clamp(0, width), boxes[..., 1::2].clamp(0, height)
    return torch.stack([across, down], dim=-1).flatten(-2)


def has_area(boxes: Tensor) -> Tensor:
    """Return which boxes are more than a line, ..., N."""
    return ((boxes[..., 2:] - boxes[..., :2]) >= SMALLEST).all(-1)


def with_area(boxes: Tensor) -> Tensor:
    """Return boxes that can be divided by: those that have no area get a pixel of it."""
    return torch.where(has_area(boxes)[..., None], boxes, F.pad(boxes[..., :2] * 0, (0, 2), value=1.0))


def best_boxes(
    boxes: Tensor, scores: Tensor, groups: Tensor, allowed: Tensor, *, overlap: float, count: int
) -> tuple[Tensor, Tensor]:
    """Return which boxes of each image are kept, best first, B, count, and which of these places are filled.

    Args:
        groups: boxes of different groups do not compete, B, N.
        allowed: which may be kept at all, B, N.
        overlap: of a box with a better one at which it is dropped.
        count: that are kept at most; places that are left hold box 0.
    """
    kept = torch.zeros(len(boxes), count, dtype=torch.int64, device=boxes.device)
    filled = torch.zeros(len(boxes), count, dtype=torch.bool, device=boxes.device)
    for number in range(len(boxes)):
        places = allowed[number].nonzero()[:, 0]
        chosen = batched_nms(
            boxes[number, places].float(), scores[number, places].float(), groups[number, places], overlap
        )
        chosen = places[chosen[:count]]
        kept[number, : len(chosen)] = chosen
        filled[number, : len(chosen)] = True
    return kept, filled


def take(values: Tensor, places: Tensor) -> Tensor:
    """Return rows of each image by their places: values B, N, ... and places B, K give B, K, ..."""
    index = places.reshape(*places.shape, *(1,) * (values.dim() - 2)).expand(*places.shape, *values.shape[2:])
    return values.gather(1, index)


def _over(part: Tensor, whole: Tensor) -> Tensor:
    """Return a quotient that is 0, with a gradient of 0, where there is nothing to divide by."""
    empty = whole <= 0
    return torch.where(empty, 0, part / torch.where(empty, 1, whole))
