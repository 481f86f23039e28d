"""GELU by the normal distribution, and by a shorter formula for a GPU in half precision.

There it takes longer to compute than to read and write: the error function is some thirty instructions a number, and
half of that by a formula right to 3e-7.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from timm.models import register_notrace_module
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from . import depthwise_triton
from .exporting import compiles_for_gpu
from .reuse import spare
from .switch import on


@register_notrace_module
class Gelu(nn.Module):
    """x times the normal distribution's share below x."""

    def forward(self, x: Tensor, over: bool = False) -> Tensor:
        """Return a tensor of the same shape; `over` writes it over the input, in inference."""
        if over:
            return torch.ops.aten.gelu_(x)
        if on("gelu") and compiles_for_gpu(x) and x.dtype in (torch.float16, torch.bfloat16):
            if depthwise_triton.INSTALLED and not torch.is_grad_enabled():  # else a compiler may choose to recompute it
                return depthwise_triton.gelu(x)
            return quick_gelu(x)
        return F.gelu(x)


def activate(act: nn.Module, hidden: Tensor, source: Tensor, *makers: nn.Module) -> Tensor:
    """Apply an activation to what the modules made of the source, in place where nobody looks at it."""
    if isinstance(act, Gelu) and spare(hidden, source, act, *makers):
        return act(hidden, over=True)
    return act(hidden)


class _Quick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x * quick_share(x.float())[0]).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return quick_gradient(grad, x)


def quick_gelu(x: Tensor) -> Tensor:
    """Return GELU in the precision of its input, computed in float32."""
    return _Quick.apply(x)


def quick_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of GELU's input, in its precision.

    A compiler may compute ahead, and keep in float32, what the input alone decides; nothing of what depends on `grad`.
    """
    share, bell = quick_share(x.float() + 0.0 * grad)
    return (grad * (share + x * bell * (1 / math.sqrt(2 * math.pi)))).to(x.dtype)


def quick_share(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the normal distribution's share below x, right to 3e-7, and exp(-x * x / 2), for a compiler to fuse.

    The share beyond |x| is that bell times a polynomial: Abramowitz and Stegun's formula 7.1.26. Its reciprocal is
    taken as a root, which a GPU has one instruction for; a division is seven.
    """
    t = (1 + 0.3275911 / math.sqrt(2) * x.abs()).square().rsqrt()
    bell = torch.exp2(x * x * (-0.5 * math.log2(math.e)))
    beyond: Tensor = torch.zeros_like(t)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        beyond = (beyond + factor / 2) * t
    beyond = beyond * bell
    return torch.where(x < 0, beyond, 1 - beyond), bell
