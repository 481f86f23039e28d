"""Batched matrix products that stay fast on the CPU when an operand is a transpose.

A right operand that is a transposed view makes the product several times slower on some CPUs, forward and backward; a
contiguous copy of it costs little.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b, B, N, K by B, K, M."""
    if a.device.type != "cpu" or a.dim() != 3 or b.dim() != 3 or not own_backward_serves(a, b):
        return a @ b
    return _Product.apply(a, b)


def own_backward_serves(*tensors: Tensor) -> bool:
    """Whether nothing but plain eager training on the CPU in one full precision is going on."""
    first = tensors[0]
    return (
        all(x.device.type == "cpu" and x.dtype == first.dtype for x in tensors)
        and first.dtype in (torch.float32, torch.float64)
        and torch.is_grad_enabled()
        and any(x.requires_grad for x in tensors)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b.contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        of_a = grad @ b.mT.contiguous() if ctx.needs_input_grad[0] else None
        of_b = a.mT @ grad if ctx.needs_input_grad[1] else None
        return of_a, of_b
