"""Intersections of predicted masks and objects in pixels."""

import torch
from torch import Tensor

from .drawing import paste_masks, paste_part
from .objects import unpack_masks

PIXELS = 2**22  # most pixels of masks in memory

Counted = tuple[Tensor, Tensor, Tensor]  # intersections of predictions and objects, K, N, and the areas of both


def mask_intersections(maps: Tensor, numbers: Tensor, *, masks: Tensor, boxes: Tensor, labels: Tensor) -> Counted:
    """Return intersections and areas in pixels, float64: of all masks at once on a GPU, one by one on a CPU.

    Args:
        maps: numbers of the objects that each pixel is of, L, H, W.
        numbers: numbers of the objects, N.
        masks: probabilities inside the boxes, K, side, side.
        boxes: boxes in pixels, K, 4.
        labels: predicted classes, K; -1 for none, whose masks are empty.
    """
    filled = torch.nonzero(labels >= 0)[:, 0]
    count = in_strips if maps.is_cuda else inside_boxes
    shared, own, theirs = count(maps, numbers, masks[filled], boxes[filled])
    whole, areas = shared.new_zeros(len(labels), len(numbers)), own.new_zeros(len(labels))
    whole[filled], areas[filled] = shared, own
    return whole, areas, theirs


def in_strips(maps: Tensor, numbers: Tensor, masks: Tensor, boxes: Tensor) -> Counted:
    """Count on strips of the image, whose masks fit in memory."""
    height, width = maps.shape[-2:]
    shared = torch.zeros(len(masks), len(numbers), dtype=torch.float64, device=maps.device)
    own, theirs = shared.new_zeros(len(masks)), shared.new_zeros(len(numbers))
    step = max(PIXELS // ((len(masks) + len(numbers) + 1) * width), 1)
    for top in range(0, height, step):
        rows = min(step, height - top)
        pasted = paste_masks(masks, boxes - boxes.new_tensor([0, top, 0, top]), (rows, width)).flatten(1).float()
        real = unpack_masks(maps[:, top : top + rows], numbers).flatten(1).float()
        shared += (pasted @ real.T).double()
        own += pasted.sum(1).double()
        theirs += real.sum(1).double()
    return shared, own, theirs


def inside_boxes(maps: Tensor, numbers: Tensor, masks: Tensor, boxes: Tensor) -> Counted:
    """Count inside the box of one mask after the other."""
    bins = int(numbers.max()) + 2 if len(numbers) else 2  # outside, no object, objects
    shared = torch.zeros(len(masks), len(numbers), dtype=torch.float64)
    own, maps = shared.new_zeros(len(masks)), maps.int() + 1  # int32, which is counted fastest
    for place, (mask, box) in enumerate(zip(masks, boxes, strict=True)):
        part, (top, left) = paste_part(mask, box, (maps.shape[1], maps.shape[2]))
        own[place] = part.sum()
        for layer in maps[:, top : top + part.shape[0], left : left + part.shape[1]]:
            shared[place] += (layer * part).flatten().bincount(minlength=bins)[numbers + 1]
    theirs = maps.flatten().bincount(minlength=bins)[numbers + 1]
    return shared, own, theirs.double()
