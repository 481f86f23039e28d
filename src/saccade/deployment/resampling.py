"""Framing inside an exported graph, bit-identical to `Framing` with Pillow.

Pillow resamples rows, rounds to bytes, then resamples columns, with 22-bit fixed-point weights. Their sums with bytes
are integers that float64 represents exactly, so that the result does not depend on the order of summation. Sizes are
tensors, since a graph has to take any size and cannot branch.
"""

import torch
from torch import Tensor

from ..data.framing import GREY
from ..data.spec import InputSpec

BITS = 1 << 22  # scale of Pillow's weights
LUMA = (19595.0, 38470.0, 7471.0)  # Pillow's RGB weights for grey, in 1/65536


def frame(image: Tensor, spec: InputSpec) -> Tensor:
    """Frame RGB or grey images, uint8 B, C, H, W, to B, in_chans, img_size, img_size."""
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
    """Return the visible range of an axis, and the first and number of output pixels that it fills."""
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
    """Return the weights of input pixels for each of `size` output pixels, and which of these are filled."""
    begin, end = begin.float(), end.float()  # Pillow stores boxes in float32
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
    """Round sums to integers from 0 to 255."""
    return ((sums + one // 2) / one).floor().clamp(0, 255)
