"""Non-maximum suppression without host synchronisation, which CUDA graphs can capture.

torchvision's `nms` returns a dynamic number of boxes, which requires synchronisation.
"""

from __future__ import annotations  # triton is imported when first used

import functools
import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from .boxes import has_area

tl: Any = None  # triton.language, set at the first use
MAX_BOXES = 8192  # most boxes of a set, limited by the thread block


def keep_reference(boxes: Tensor, allowed: Tensor, overlap: float) -> Tensor:
    """Compute `keep_best` box by box."""
    boxes, stays = boxes.float(), allowed.clone()
    area = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
    for place in range(boxes.shape[1]):
        best, rest = boxes[:, place : place + 1], boxes[:, place + 1 :]
        corners = torch.maximum(best[..., :2], rest[..., :2]), torch.minimum(best[..., 2:], rest[..., 2:])
        shared = (corners[1] - corners[0]).clamp_min(0).prod(-1)
        union = area[:, place : place + 1] + area[:, place + 1 :] - shared
        stays[:, place + 1 :] &= ~(stays[:, place : place + 1] & (shared > overlap * union))
    return stays


SCHEMA = "(Tensor boxes, Tensor allowed, float overlap) -> Tensor"
_keep_best = torch.library.custom_op(
    "saccade::keep_best", keep_reference, mutates_args=(), schema=SCHEMA, device_types="cpu"
)


@_keep_best.register_fake
def _(boxes: Tensor, allowed: Tensor, overlap: float) -> Tensor:  # noqa: ARG001
    return torch.empty_like(allowed)


def keep_best(boxes: Tensor, allowed: Tensor, *, overlap: float) -> Tensor:
    """Return which boxes are kept, B, N bool: those whose IoU with every better kept box is at most `overlap`.

    Args:
        boxes: boxes, best first, B, N, 4.
        allowed: which boxes may be kept, B, N.
        overlap: largest IoU.
    """
    return cast(Tensor, _keep_best(boxes, allowed, overlap))


def keep_of_levels(boxes: Sequence[Tensor], *, overlap: float) -> Tensor:
    """Suppress boxes separately on several levels; return which are kept, B, N of all levels.

    Args:
        boxes: boxes of each level, best first, B, N, 4; levels are processed in parallel.
        overlap: as for `keep_best`.
    """
    counts = [one.shape[1] for one in boxes]
    padded = torch.stack([F.pad(one, (0, 0, 0, max(counts) - one.shape[1])) for one in boxes], dim=1)
    alive = keep_best(padded.flatten(0, 1), has_area(padded.flatten(0, 1)), overlap=overlap)
    alive = alive.view(padded.shape[:3])
    return torch.cat([alive[:, number, :count] for number, count in enumerate(counts)], dim=1)


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def can_replay(boxes: Tensor) -> bool:
    """Whether `keep_best` runs on boxes, B, N, 4, without synchronisation."""
    return boxes.is_cuda and has_triton() and boxes.shape[1] <= MAX_BOXES


@_keep_best.register_kernel("cuda")
def keep_by_kernel(boxes: Tensor, allowed: Tensor, overlap: float) -> Tensor:
    """Compute `keep_best` with one Triton program per image."""
    batch, count, _ = boxes.shape
    alive = torch.empty(batch, count, dtype=torch.int32, device=boxes.device)
    size = max(1 << (count - 1).bit_length(), 32)
    with torch.cuda.device_of(boxes):
        _kernel()[(batch,)](
            boxes.float().contiguous(),
            allowed.to(torch.int32).contiguous(),
            alive,
            count,
            overlap,
            size,
            num_warps=max(min(size // 128, 16), 1),
        )
    return alive.bool()


@functools.cache
def _kernel() -> Any:
    global tl
    triton = importlib.import_module("triton")  # avoids missing type stubs
    tl = triton.language
    return triton.jit(_keep)


def _keep(
    boxes: tl.tensor,
    allowed: tl.tensor,
    alive: tl.tensor,
    count: tl.tensor,
    overlap: tl.tensor,
    size: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    here = tl.arange(0, size)
    inside = here < count
    own = boxes + (row * count + here) * 4
    left = tl.load(own, mask=inside, other=0.0)
    top = tl.load(own + 1, mask=inside, other=0.0)
    right = tl.load(own + 2, mask=inside, other=0.0)
    bottom = tl.load(own + 3, mask=inside, other=0.0)
    area = (right - left) * (bottom - top)
    state = tl.load(allowed + row * count + here, mask=inside, other=0)
    for place in range(count):
        first = boxes + (row * count + place) * 4
        x0 = tl.load(first)
        y0 = tl.load(first + 1)
        x1 = tl.load(first + 2)
        y1 = tl.load(first + 3)
        stays = tl.sum(tl.where(here == place, state, 0), axis=0)
        if stays > 0:
            wide = tl.maximum(tl.minimum(right, x1) - tl.maximum(left, x0), 0.0)
            high = tl.maximum(tl.minimum(bottom, y1) - tl.maximum(top, y0), 0.0)
            shared = wide * high
            union = area + (x1 - x0) * (y1 - y0) - shared
            state = tl.where((here > place) & (shared > overlap * union), 0, state)
    tl.store(alive + row * count + here, state, mask=inside)
