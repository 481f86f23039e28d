"""Max pooling of 3x3 cells to half the side, of plain operators that a compiler fuses."""

import math
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def max_pool_reference(x: Tensor) -> Tensor:
    """Pool maps, B, C, H, W."""
    return F.max_pool2d(x, 3, 2, 1)


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
