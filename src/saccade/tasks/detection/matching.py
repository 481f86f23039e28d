"""Matching of anchors and proposals with objects: by overlap, by ATSS, and random sampling."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .boxes import centres, overlaps

NOTHING, UNUSED = -1, -2  # background; ignored in the loss


def match_by_overlap(
    found: Tensor, real: Tensor, *, high: float, low: float | None = None, every_object: bool = False
) -> Tensor:
    """Return the object index of each anchor, B, A, or `NOTHING`, or `UNUSED`.

    Args:
        found: IoU of objects and anchors, B, N, A.
        real: which objects are not padding, B, N.
        high: anchors with at least this IoU are matched with their best object.
        low: anchors below this IoU are background, those between are ignored; default: `high`.
        every_object: also match the anchors with the highest IoU for an object.
    """
    if found.shape[1] == 0:
        return found.new_full((len(found), found.shape[2]), NOTHING, dtype=torch.int64)
    found = torch.where(real[..., None], found, -1.0)
    best, matched = found.max(1)
    result = torch.where(best < (high if low is None else low), NOTHING, torch.where(best < high, UNUSED, matched))
    if every_object:
        highest = found.amax(2, keepdim=True)
        lifted = ((found == highest) & real[..., None]).any(1)
        result = torch.where(lifted, matched, result)
    return result


def match_by_atss(boxes: Tensor, real: Tensor, anchors: Tensor, counts: Sequence[int], *, nearest: int = 9) -> Tensor:
    """Adaptive training sample selection: return the object index of each anchor, B, A, or `NOTHING`.

    The anchors nearest to an object on each level are candidates. Those with an IoU of at least mean plus standard
    deviation of the candidates' IoUs, and with their centre inside the object, are matched; an anchor takes the object
    with the highest IoU.

    Args:
        anchors: anchors of all levels, A, 4 or B, A, 4.
        counts: number of anchors on each level.
        nearest: number of candidates on a level.
    """
    batch, objects = real.shape
    if objects == 0:
        return torch.full((batch, anchors.shape[-2]), NOTHING, device=boxes.device)
    anchors = anchors.expand(batch, -1, -1)
    found, middle = overlaps(boxes, anchors), centres(anchors)
    distance = torch.cdist(
        centres(boxes), middle, compute_mode="donot_use_mm_for_euclid_dist"
    )  # the same on any device
    candidates, start = [], 0
    for count in counts:
        near = distance[..., start : start + count].topk(min(nearest, count), largest=False).indices
        candidates.append(near + start)
        start += count
    places = torch.cat(candidates, dim=-1)  # B, N, C
    shared = found.gather(2, places)
    threshold = shared.mean(-1) + shared.std(-1)
    inside = (middle[:, None] > boxes[..., None, :2]).all(-1) & (middle[:, None] < boxes[..., None, 2:]).all(-1)
    good = (shared >= threshold[..., None]) & inside.gather(2, places) & real[..., None]
    value = torch.full_like(found, -1.0).scatter(2, places, torch.where(good, shared, -1.0))
    best, matched = value.max(1)
    return torch.where(best < 0, NOTHING, matched)


def level_by_size(boxes: Tensor, strides: Sequence[float], *, cells: float) -> Tensor:
    """Return the pyramid level for each object's size, B, N.

    Args:
        strides: strides of the levels, finest first, each about twice the one before.
        cells: least cells along a side.
    """
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=1e-3)
    octave = torch.log2(sides.prod(-1).sqrt() / (cells * strides[0])).floor()
    return octave.clamp(0, len(strides) - 1).to(torch.int64)


def match_by_point(boxes: Tensor, real: Tensor, points: Tensor, levels: Tensor, counts: Sequence[int]) -> Tensor:
    """Return the object index of each point, B, A, or `NOTHING`: objects match the nearest point of their level.

    Args:
        levels: levels of the objects, B, N.
        counts: number of points on each level.
    """
    batch, objects = real.shape
    if objects == 0:
        return torch.full((batch, len(points)), NOTHING, device=boxes.device)
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=1e-3)
    distance = ((points - centres(boxes)[:, :, None]) / sides[:, :, None]).norm(dim=-1)  # B, N, A
    start = 0
    for number, count in enumerate(counts):
        distance[..., start : start + count].masked_fill_((levels != number)[..., None], torch.inf)
        start += count
    least, place = distance.min(-1)
    value = torch.full_like(distance, torch.inf).scatter(2, place[..., None], least[..., None])
    best, matched = torch.where(real[..., None], value, torch.inf).min(1)
    return torch.where(best < torch.inf, matched, NOTHING)


def ignore_hidden(matched: Tensor, hidden: Tensor) -> Tensor:
    """Mark background inside crowd regions as `UNUSED`."""
    return torch.where((matched == NOTHING) & hidden, UNUSED, matched)


def draw_samples(matched: Tensor, priorities: Tensor, *, count: int, positive: float) -> tuple[Tensor, Tensor]:
    """Sample matched ones and background at random; return indices, B, count, and which are valid.

    Matched ones are first, up to the given fraction; background fills the rest.

    Args:
        matched: B, A.
        priorities: random number of each, B, A; the highest are chosen.
        count: most samples per image.
        positive: largest fraction of matched ones.
    """
    most, count = int(count * positive), min(count, matched.shape[1])
    is_object, is_background = matched >= 0, matched == NOTHING
    order = torch.where(is_object, priorities, -1.0).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter(1, order, torch.arange(order.shape[1], device=order.device).expand_as(order))
    taken = is_object & (rank < most)
    priority = torch.where(taken, priorities + 1, torch.where(is_background, priorities, -1.0))
    value, places = priority.topk(count, dim=1)
    return places, value >= 0


def random_priorities(seeds: Tensor, count: int) -> Tensor:
    """Return random numbers from 0 to 1, B, count, by hashing; the same for equal seeds on any device."""
    mixed = seeds[:, None] * 0x9E3779B1 + torch.arange(count, device=seeds.device) * 0x85EBCA6B
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        mixed = mixed & 0xFFFFFFFF
        mixed = ((mixed ^ (mixed >> shift)) * factor) & 0xFFFFFFFF
    return (mixed >> 8).to(torch.float32) / 2**24
