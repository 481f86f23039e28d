"""Box operations: overlap, encoding relative to anchors, non-maximum suppression; corners x0, y0, x1, y1 in pixels.

All functions take batches, ..., N, 4, and keep the number of rows, so that shapes are static.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import batched_nms

WIDEST = math.log(1000 / 16)  # limits the size of decoded boxes
MIN_SIDE = 1e-2  # smallest side of a kept box in pixels
VISIBLE = 0.1  # objects with a smaller visible fraction in a crop are dropped


def areas(boxes: Tensor) -> Tensor:
    """Return the areas, ..., N, which are not negative."""
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


def centres(boxes: Tensor) -> Tensor:
    """Return the centres, ..., N, 2."""
    return (boxes[..., :2] + boxes[..., 2:]) / 2


def intersections(first: Tensor, second: Tensor) -> Tensor:
    """Return the intersection areas of all pairs of boxes, ..., N, M."""
    low = torch.maximum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.minimum(first[..., :, None, 2:], second[..., None, :, 2:])
    sides = (high - low).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


def overlaps(first: Tensor, second: Tensor) -> Tensor:
    """Return the intersection over union of all pairs of boxes, ..., N, M."""
    shared = intersections(first, second)
    return _over(shared, areas(first)[..., :, None] + areas(second)[..., None, :] - shared)


def covered(boxes: Tensor, regions: Tensor) -> Tensor:
    """Return the fraction of each box that is inside each region, ..., N, M."""
    return _over(intersections(boxes, regions), areas(boxes)[..., :, None].expand(*boxes.shape[:-1], regions.shape[-2]))


def generalized_overlap(first: Tensor, second: Tensor) -> Tensor:
    """Return the elementwise generalized intersection over union of boxes, ..., N, from -1 to 1."""
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    sides = (high - low).clamp(min=0)
    shared = sides[..., 0] * sides[..., 1]
    union = areas(first) + areas(second) - shared
    around = torch.maximum(first[..., 2:], second[..., 2:]) - torch.minimum(first[..., :2], second[..., :2])
    hull = around[..., 0] * around[..., 1]
    return _over(shared, union) - _over(hull - union, hull)


def encode(boxes: Tensor, anchors: Tensor, weights: tuple[float, float] = (1.0, 1.0)) -> Tensor:
    """Encode boxes as centre offset and log size relative to anchors, ..., N, 4.

    Args:
        boxes: boxes to encode; empty ones are treated as tiny.
    """
    sides, own = anchors[..., 2:] - anchors[..., :2], (boxes[..., 2:] - boxes[..., :2]).clamp(min=MIN_SIDE)
    shift = (centres(boxes) - centres(anchors)) / sides
    return torch.cat([shift * weights[0], (own / sides).log() * weights[1]], dim=-1)


def decode(codes: Tensor, anchors: Tensor, weights: tuple[float, float] = (1.0, 1.0)) -> Tensor:
    """Decode the codes of `encode` to boxes, ..., N, 4."""
    sides = anchors[..., 2:] - anchors[..., :2]
    middle = centres(anchors) + codes[..., :2] / weights[0] * sides
    half = (codes[..., 2:] / weights[1]).clamp(max=WIDEST).exp() * sides / 2
    return torch.cat([middle - half, middle + half], dim=-1)


def clip(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Clip boxes to an image's height and width."""
    height, width = size
    across, down = boxes[..., 0::2].clamp(0, width), boxes[..., 1::2].clamp(0, height)
    return torch.stack([across, down], dim=-1).flatten(-2)


def seen_boxes(boxes: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return boxes, ..., N, 4, clipped to a crop of the given height and width, and which are visible, ..., N."""
    inside = clip(boxes, size)
    return inside, areas(inside) >= VISIBLE * areas(boxes).clamp(min=1e-6)


def has_area(boxes: Tensor) -> Tensor:
    """Return which boxes have an area, ..., N."""
    return ((boxes[..., 2:] - boxes[..., :2]) >= MIN_SIDE).all(-1)


def with_area(boxes: Tensor) -> Tensor:
    """Return boxes with positive area: empty ones become one pixel."""
    return torch.where(has_area(boxes)[..., None], boxes, F.pad(boxes[..., :2] * 0, (0, 2), value=1.0))


def best_boxes(
    boxes: Tensor, scores: Tensor, groups: Tensor, allowed: Tensor, *, overlap: float, count: int
) -> tuple[Tensor, Tensor]:
    """Non-maximum suppression: return indices of kept boxes, best first, B, count, and which ones are valid.

    Args:
        groups: boxes of different groups do not suppress each other, B, N.
        allowed: which boxes may be kept, B, N.
        overlap: IoU with a better box from which a box is dropped.
        count: most boxes to keep; invalid entries are 0.
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
    """Gather rows of each image: values B, N, ... and places B, K give B, K, ..."""
    index = places.reshape(*places.shape, *(1,) * (values.dim() - 2)).expand(*places.shape, *values.shape[2:])
    return values.gather(1, index)


def _over(part: Tensor, whole: Tensor) -> Tensor:
    """Divide; 0, with zero gradient, where the divisor is 0."""
    empty = whole <= 0
    return torch.where(empty, 0, part / torch.where(empty, 1, whole))
