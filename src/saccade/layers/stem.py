"""A convolution at full resolution before max pooling: small images, the bias, the pooling's gradient."""

import math
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from timm.models import register_notrace_function
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .exporting import compiles_for_gpu
from .numerics import as_products_read, in_half_precision
from .switch import on


def pool_before_bias(stem: nn.Sequential, x: Tensor) -> Tensor:
    """Run a convolution and the max poolings behind it; a constant added to a channel does not change its maxima.

    A compiler on a GPU adds the bias in a pass of its own over the largest map of the network, and sums its gradient in
    another.

    Args:
        stem: a convolution with a bias, then max poolings.
        x: images, B, C, H, W.
    """
    conv, *pools = stem
    if (
        not on("late_bias")
        or not isinstance(conv, nn.Conv2d)
        or conv.bias is None
        or any(m._forward_hooks for m in stem)
    ):
        return stem(x)
    x, weight = aligned(x, conv.weight) if conv.groups == 1 else (x, conv.weight)
    x = F.conv2d(x, weight, None, conv.stride, conv.padding, conv.dilation, conv.groups)
    for pool in pools:
        x = MaxPool.apply(x) if torch.compiler.is_compiling() and torch.is_grad_enabled() and _halves(pool) else pool(x)
    return x + conv.bias.to(x.dtype).view(-1, 1, 1)


def aligned(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return images and kernels with channels of zeros up to eight, in inference by half precision compiled for a GPU.

    Its library would add them itself, in a pass of its own over the images.
    """
    if torch.is_grad_enabled() or not compiles_for_gpu(x):
        return x, weight
    x = as_products_read(x)
    more = -x.shape[1] % 8 if in_half_precision(x) else 0
    return F.pad(x, (0, 0, 0, 0, 0, more)), F.pad(weight, (0, 0, 0, 0, 0, more))


def _halves(pool: nn.Module) -> bool:
    """Tell whether a module is the max pooling that `MaxPool` is."""
    if not on("max_pool") or type(pool) is not nn.MaxPool2d or pool.ceil_mode or pool.return_indices:
        return False
    return (pool.kernel_size, pool.stride, pool.padding, pool.dilation) == (3, 2, 1, 1)


class MaxPool(torch.autograd.Function):
    """Max pooling of 3x3 cells to half the side, which a compiler makes one plain kernel of, and of its gradient.

    The largest of a cell gets the gradient, the first of several as in PyTorch's own. Rows and columns of the input are
    even or odd: an even one is in the middle of a cell, an odd one at the end of one and at the beginning of the next.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Pool maps, B, C, H, W."""
        padded = F.pad(x, (1, 1, 1, 1), value=-math.inf)
        height, width = ((side + 1) // 2 for side in x.shape[2:])
        out = padded[:, :, : 2 * height : 2, : 2 * width : 2]
        place = torch.zeros_like(out, dtype=torch.int8)  # in its cell, 0 to 8
        for cell in range(1, 9):
            down, right = divmod(cell, 3)
            value = padded[:, :, down : down + 2 * height - 1 : 2, right : right + 2 * width - 1 : 2]
            place = torch.where(value > out, cell, place)
            out = torch.maximum(out, value)
        ctx.save_for_backward(place)
        ctx.size = x.shape[2:]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return the gradient towards the maps."""
        (place,) = ctx.saved_tensors
        bit = torch.arange(2, device=grad.device, dtype=torch.int8)
        row, column = bit.view(2, 1, 1, 1), bit.view(2, 1)  # odd or even, of B, H', 2, W', 2, C
        found = []
        for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
            # an even row is the middle one of its cell, an odd one the last, and the first of the cell below
            at = 3 * (_first(row) if down else row + 1) + (_first(column) if right else column + 1)
            near, there = (_next(x.permute(0, 2, 3, 1), down, right) for x in (grad, place))
            found.append(torch.where(there == at, near, 0))
        whole = reduce(torch.add, found).flatten(3, 4).flatten(1, 2)
        return whole[:, : ctx.size[0], : ctx.size[1]].permute(0, 3, 1, 2)


def _first(odd: Tensor) -> Tensor:
    """Return 0 for odd, else a number that no place of a cell comes to."""
    return 9 * (1 - odd)


def _next(x: Tensor, down: int, right: int) -> Tensor:
    """Return the cell below, or to the right, with none behind the last, B, H', 1, W', 1, C."""
    return F.pad(x[:, down:, right:], (0, 0, 0, right, 0, down), value=-1)[:, :, None, :, None]


def pad_to(x: Tensor, side: int) -> Tensor:
    """Pad an image with zeros at the right and below to a smallest side, where poolings would leave no pixel.

    Sizes that are symbolic while a model is being exported are taken to be large enough.
    """
    height, width = x.shape[2:]
    if not (isinstance(height, int) and isinstance(width, int)) or min(height, width) >= side:
        return x
    return F.pad(x, (0, max(0, side - width), 0, max(0, side - height)))


register_notrace_function(pad_to)  # it looks at sizes
