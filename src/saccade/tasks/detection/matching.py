"""Which object an anchor or a proposal is to find: by overlap, by ATSS, and a fixed number of them by lot."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .boxes import centres, overlaps

NOTHING, UNUSED = -1, -2  # matched with the background; left out of the loss


def match_by_overlap(
    found: Tensor, real: Tensor, *, high: float, low: float | None = None, every_object: bool = False
) -> Tensor:
    """Return the number of each anchor's object, B, A, or `NOTHING`, or `UNUSED`.

    Args:
        found: overlap of objects and anchors, B, N, A.
        real: which objects there are, B, N; the rest fill up the batch.
        high: an anchor with at least this overlap is matched with its best object.
        low: one with less than this is background, what lies between is left out; the same as `high` if not given.
        every_object: match the anchors that overlap an object best, however little, with their own best object.
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
    """Return the number of each anchor's object, B, A, or `NOTHING`: adaptive training sample selection.

    Of each level the anchors nearest to an object are candidates. Those that overlap it by at least the mean of the
    candidates' overlaps plus their deviation, and whose centre lies within it, are matched; of several objects an
    anchor takes the one it overlaps most.

    Args:
        anchors: of all levels, A, 4 or B, A, 4.
        counts: anchors of each level.
        nearest: candidates of a level.
    """
    batch, objects = real.shape
    if objects == 0:
        return torch.full((batch, anchors.shape[-2]), NOTHING, device=boxes.device)
    anchors = anchors.expand(batch, -1, -1)
    found, middle = overlaps(boxes, anchors), centres(anchors)
    distance = torch.cdist(centres(boxes), middle, compute_mode="donot_use_mm_for_euclid_dist")  # exact on any device
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
    """Return the level whose cells are nearest below a part of each object's side, B, N.

    Args:
        strides: of the levels, finest first, each about twice the one before.
        cells: of a side on its level, at least.
    """
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=1e-3)
    octave = torch.log2(sides.prod(-1).sqrt() / (cells * strides[0])).floor()
    return octave.clamp(0, len(strides) - 1).to(torch.int64)


def match_by_point(boxes: Tensor, real: Tensor, points: Tensor, levels: Tensor, counts: Sequence[int]) -> Tensor:
    """Return the number of each point's object, B, A, or `NOTHING`: an object has the nearest point of its level.

    Args:
        levels: of the objects, B, N.
        counts: points of each level.
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


def leave_out(matched: Tensor, hidden: Tensor) -> Tensor:
    """Return matches in which what is background and lies in a region that nothing is said of is left out."""
    return torch.where((matched == NOTHING) & hidden, UNUSED, matched)


def draw_samples(matched: Tensor, lots: Tensor, *, count: int, positive: float) -> tuple[Tensor, Tensor]:
    """Return places of matched ones and of background, drawn by lot, B, count, and which of these places are filled.

    Matched ones come first, at most a given part; background fills up the rest.

    Args:
        matched: B, A.
        lots: a number for each, B, A; the highest are drawn.
        count: that are drawn of each image, at most.
        positive: part of them that may be matched ones.
    """
    most, count = int(count * positive), min(count, matched.shape[1])
    is_object, is_background = matched >= 0, matched == NOTHING
    order = torch.where(is_object, lots, -1.0).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter(1, order, torch.arange(order.shape[1], device=order.device).expand_as(order))
    taken = is_object & (rank < most)
    priority = torch.where(taken, lots + 1, torch.where(is_background, lots, -1.0))
    value, places = priority.topk(count, dim=1)
    return places, value >= 0


def lots(seeds: Tensor, count: int) -> Tensor:
    """Return numbers from 0 to 1, B, count, that seem drawn by lot: the same for the same seeds, on any device."""
    mixed = seeds[:, None] * 0x9E3779B1 + torch.arange(count, device=seeds.device) * 0x85EBCA6B
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        mixed = mixed & 0xFFFFFFFF
        mixed = ((mixed ^ (mixed >> shift)) * factor) & 0xFFFFFFFF
    return (mixed >> 8).to(torch.float32) / 2**24
