"""Intersections of predicted masks and objects in pixels."""

import torch
from torch import Tensor

from ...data.frame import strips
from .drawing import paste_masks, paste_part
from .objects import unpack_masks

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
    for part in strips(height, (len(masks) + len(numbers) + 1) * width):
        moved = boxes - boxes.new_tensor([0, part.start, 0, part.start])
        pasted = paste_masks(masks, moved, (part.stop - part.start, width)).flatten(1).float()
        real = unpack_masks(maps[:, part], numbers).flatten(1).float()
        shared += (pasted @ real.T).double()
        own += pasted.sum(1).double()
        theirs += real.sum(1).double()
    return shared, own, theirs


def inside_boxes(maps: Tensor, numbers: Tensor, masks: Tensor, boxes: Tensor) -> Counted:
    """Count inside the box of one mask after the other."""
    bins = int(numbers.max()) + 2 if len(numbers) else 2  # outside, no object, objects
    shared = torch.zeros(len(masks), len(numbers), dtype=torch.float64)
    own, theirs = shared.new_zeros(len(masks)), shared.new_zeros(len(numbers))

    def count(layer: Tensor, part: Tensor | int = 1) -> Tensor:
        codes = (layer.int() + 1) * part  # int32, which is counted fastest
        return codes.flatten().bincount(minlength=bins)[numbers + 1]

    for place, (mask, box) in enumerate(zip(masks, boxes, strict=True)):
        part, (top, left) = paste_part(mask, box, (maps.shape[1], maps.shape[2]))
        own[place] = part.sum()
        for rows in strips(*part.shape):
            here = slice(top + rows.start, top + rows.stop), slice(left, left + part.shape[1])
            shared[place] += sum(count(layer[here], part[rows]) for layer in maps)
    for rows in strips(maps.shape[1], maps.shape[0] * maps.shape[2]):
        theirs += count(maps[:, rows])
    return shared, own, theirs
