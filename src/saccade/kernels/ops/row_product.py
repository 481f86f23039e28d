"""Product of very many rows with a small matrix, whose gradient is summed over groups of rows apart."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...layers.numerics import upcast


def row_product_reference(x: Tensor, weight: Tensor, parts: int) -> Tensor:  # noqa: ARG001
    """Return x @ weight^T, N, out."""
    return F.linear(x, weight)


class RowProduct(torch.autograd.Function):
    """x @ weight^T, N, out, of x, N, in, and weight, out, in, in one precision.

    `parts` is the number of groups of rows that the weight's gradient is summed over apart: libraries share a product
    out among the multiprocessors by its result, and that is small.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, parts: int) -> Tensor:
        """Return the product."""
        ctx.save_for_backward(x, weight)
        ctx.parts = parts
        return x @ weight.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Return the gradients towards rows and weight."""
        x, weight = ctx.saved_tensors
        of_x = grad @ weight if ctx.needs_input_grad[0] else None
        of_weight = None
        if ctx.needs_input_grad[1]:
            slope, rows = (matrix.unflatten(0, (ctx.parts, -1)) for matrix in (grad, x))
            partial = torch.bmm(slope.mT, rows)
            of_weight = upcast(partial).sum(0).to(weight.dtype)
        return of_x, of_weight, None
