"""Products of very many rows."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .numerics import as_products_read, upcast


def product(x: Tensor, weight: Tensor, *, parts: int) -> Tensor:
    """Return x @ weight^T of very many rows, N, out.

    Args:
        x: N, in.
        weight: out, in.
        parts: groups of rows that the weight's gradient is summed over apart: libraries share a product out among the
            multiprocessors by its result, and that is small.
    """
    x = as_products_read(x)
    return _Product.apply(x, weight.to(x.dtype), parts)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, parts: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parts = parts
        return x @ weight.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        of_x = grad @ weight if ctx.needs_input_grad[0] else None
        of_weight = None
        if ctx.needs_input_grad[1]:
            slope, rows = (matrix.unflatten(0, (ctx.parts, -1)) for matrix in (grad, x))
            partial = torch.bmm(slope.mT, rows)
            of_weight = upcast(partial).sum(0).to(weight.dtype)
        return of_x, of_weight, None
