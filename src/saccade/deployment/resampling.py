"""Framing inside a graph: what `Framing` makes of an image with Pillow, to the bit, in operations that graphs have.

Pillow resamples rows, rounds to bytes, then columns; its weights have 22 bits behind the point. Sums of such weights
times bytes are whole numbers that float64 holds exactly, so the same bytes come out whatever adds them up. Sizes are
tensors here: a graph has to take any, and must not branch.
"""

import torch
from torch import Tensor

from ..data.framing import GREY
from ..data.spec import InputSpec

BITS = 1 << 22  # of Pillow's weights
LUMA = (19595.0, 38470.0, 7471.0)  # Pillow's grey of RGB, in parts of 65536


def frame(image: Tensor, spec: InputSpec) -> Tensor:
    """Return RGB or grey images of one size, uint8 B, C, H, W, as a model is asked: B, in_chans, img_size, img_size."""
    size = spec.img_size
    height, width = (torch.scalar_tensor(side, dtype=torch.float64) for side in image.shape[-2:])
    across, inside_x = _weights(image.shape[-1], width, *_part(width, height, spec), size)
    down, inside_y = _weights(image.shape[-2], height, *_part(height, width, spec), size)
    framed = _to_bytes(down @ _to_bytes(image.double() @ across.mT, BITS), BITS)
    framed = torch.where(inside_y[:, None] & inside_x, framed, GREY)
    if spec.in_chans == 1:
        luma = torch.tensor(LUMA, dtype=torch.float64)[torch.arange(image.shape[1])]
        parts = torch.where(torch.scalar_tensor(image.shape[1]) == 1, 65536.0, luma)
        framed = _to_bytes((framed * parts[:, None, None]).sum(1, keepdim=True), 65536)
    return framed.to(torch.uint8)


def _part(side: Tensor, other: Tensor, spec: InputSpec) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return where what is shown begins and ends on an axis, and the pixels that it fills: the first, and how many."""
    size = spec.img_size
    if spec.framing.fit:  # see `fitted`
        count = (side * (size / torch.maximum(side, other))).round().clamp(min=1)
        return torch.zeros_like(side), side, ((size - count) / 2).floor(), count
    short = torch.minimum(side, other)  # see `middle_box`
    part = torch.maximum(short * (size / (spec.shorter or size)), short.clamp(max=size))
    begin = (side - part) / 2
    return begin, begin + part, torch.zeros_like(side), torch.full_like(side, size)


def _weights(
    length: int, side: Tensor, begin: Tensor, end: Tensor, first: Tensor, count: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """Return what each pixel made, of `size`, takes of each pixel given, and which of them are made of any."""
    begin, end = begin.float(), end.float()  # as Pillow keeps a box
    scale = (end - begin).double() / count
    places = torch.arange(size, dtype=torch.float64) - first
    inside = (places >= 0) & (places < count)
    width = scale.clamp(min=1)
    centre = (begin.double() + (places + 0.5) * scale)[:, None]
    given = torch.arange(length, dtype=torch.float64)
    low = (centre - 2 * width + 0.5).floor().clamp(min=0)
    high = torch.minimum((centre + 2 * width + 0.5).floor(), side)
    x = ((given - centre + 0.5) * (1 / width)).abs()
    near, far = (1.5 * x - 2.5) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5  # bicubic, a = -1/2
    weights = torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
    weights = torch.where((given >= low) & (given < high) & inside[:, None], weights, 0.0)
    weights = weights / torch.where(inside, weights.sum(1), 1.0)[:, None] * BITS
    return torch.where(weights < 0, (weights - 0.5).ceil(), (weights + 0.5).floor()), inside


def _to_bytes(sums: Tensor, one: int) -> Tensor:
    """Return sums rounded to whole numbers from 0 to 255."""
    return ((sums + one // 2) / one).floor().clamp(0, 255)
