"""A stem on the CPU: a 3x3 convolution at full resolution and max pooling, some rows at a time.

Fresh memory for the whole map costs more than the convolution; that for a band of its rows is used again by the next.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import dense_block_cpu
from .dense_block_cpu import around
from .positions import rows

HALVE = (3, 3), (2, 2), (1, 1)  # kernel, stride and padding of the pooling


def stem_reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve images by 3x3 kernels and pool to half the side, B, C, H / 2, W / 2."""
    return F.max_pool2d(F.conv2d(x, weight, bias, padding=1), *HALVE)


def bands(x: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield images, rows of the pooled map, and the pixels that these and the row above them are made of.

    Args:
        x: images, B, C, H, W.

    Yields:
        The last one with a margin of one pixel, B', H' + 2, W + 2, C. The first band has no row above.
    """
    batch, _, height, width = x.shape
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    many = max(1, dense_block_cpu.ROWS // (height * width))
    tall = -(-dense_block_cpu.ROWS // (2 * many * width))
    for image in range(0, batch, many):
        for row in range(0, (height + 1) // 2, tall):
            top, bottom = max(0, 2 * row - 2), min(height, 2 * (row + tall))
            yield slice(image, image + many), slice(row, row + tall), padded[image : image + many, top : bottom + 2]


def convolved(pixels: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the convolution of what `bands` yields, without the margin, B', C, H', W."""
    return F.conv2d(pixels.permute(0, 3, 1, 2), weight, bias)


def stem_in_bands(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve images by 3x3 kernels and pool to half the side, B, C, H / 2, W / 2, channels last."""
    size = len(x), len(weight), -(-x.shape[2] // 2), -(-x.shape[3] // 2)
    out = torch.empty(size, dtype=x.dtype, memory_format=torch.channels_last)
    for images, where, pixels in bands(x):
        pooled = F.max_pool2d(convolved(pixels, weight, bias), *HALVE)
        out[images, :, where] = pooled[:, :, min(1, where.start) :]
    return out


class StemInBands(torch.autograd.Function):
    """The same for training, keeping the images alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return B, C, H / 2, W / 2."""
        ctx.save_for_backward(x, weight, bias)
        return stem_in_bands(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Go back, computing every band again."""
        x, weight, bias = ctx.saved_tensors
        out, width = weight.shape[:2]
        total = weight.new_zeros(9 * width, out)
        of_x = F.pad(torch.zeros_like(x), (1, 1, 1, 1)) if ctx.needs_input_grad[0] else None
        turned = weight.flip(2, 3).transpose(0, 1).contiguous()
        for images, where, pixels in bands(x):
            above = min(1, where.start)
            coming = grad[images, :, where.start - above : where.stop].clone(memory_format=torch.channels_last)
            coming[:, :, :above] = 0
            of_made = before_pooling(coming, convolved(pixels, weight, bias))
            total += around(pixels).t() @ rows(of_made)
            if of_x is not None:
                top = max(0, 2 * where.start - 2)
                of_x[images, :, top : top + pixels.shape[1]] += F.conv2d(of_made, turned, padding=2)
        of_weight = total.view(3, 3, width, out).permute(3, 2, 0, 1)
        return None if of_x is None else of_x[:, :, 1:-1, 1:-1], of_weight, grad.sum((0, 2, 3))


def before_pooling(grad: Tensor, made: Tensor) -> Tensor:
    """Return the gradient towards a map that was pooled to half its side."""
    index = F.max_pool2d_with_indices(made, *HALVE)[1]
    return torch.ops.aten.max_pool2d_with_indices_backward(grad, made, *HALVE, (1, 1), False, index)
