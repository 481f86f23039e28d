"""GELU by the normal distribution, with ways that are fast where PyTorch's own is not.

On the CPU its backward pass takes ten times its forward; where code can be compiled, its slope is there by then, and
inference takes little more than half the time. On a GPU, in half precision, it takes longer to compute than to read
and write: the error function is some thirty instructions a number, and half of that by a formula right to 3e-7.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from timm.models import register_notrace_module
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from . import activation_native, depthwise_triton
from .exporting import compiles_for_gpu
from .product import own_backward_serves
from .reuse import eager_inference, spare
from .switch import on


@register_notrace_module
class Gelu(nn.Module):
    """x times the normal distribution's share below x."""

    def forward(self, x: Tensor, over: bool = False) -> Tensor:
        """Return a tensor of the same shape; `over` writes it over the input, in inference."""
        if eager_inference(x) and activation_native.serves(x):
            return activation_native.gelu(x, over)
        if over:
            return torch.ops.aten.gelu_(x)
        if on("gelu") and compiles_for_gpu(x) and x.dtype in (torch.float16, torch.bfloat16):
            if depthwise_triton.INSTALLED and not torch.is_grad_enabled():  # else a compiler may choose to recompute it
                return depthwise_triton.gelu(x)
            return quick_gelu(x)
        return _Gelu.apply(x) if own_backward_serves(x) else F.gelu(x)


def activate(act: nn.Module, hidden: Tensor, source: Tensor, *makers: nn.Module) -> Tensor:
    """Apply an activation to what the modules made of the source, in place where nobody looks at it."""
    if isinstance(act, Gelu) and spare(hidden, source, act, *makers):
        return act(hidden, over=True)
    return act(hidden)


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.known = activation_native.serves(x)
        out, kept = activation_native.gelu_and_slope(x) if ctx.known else (F.gelu(x), x)
        ctx.save_for_backward(kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (kept,) = ctx.saved_tensors  # the slope if it is known, else what it is to be computed from
        if ctx.known:
            return kept * grad
        share, density = share_and_density(kept)
        return share.addcmul_(kept, density).mul_(grad)


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


def gelu_and_back(x: Tensor, grad: Tensor | None) -> Tensor:
    """Return GELU of a tensor on the CPU, and make its gradient, if there is one, that of the tensor, in place."""
    if grad is not None and activation_native.serves(x) and activation_native.serves(grad):
        return activation_native.gelu_and_back(x, grad)
    share, density = share_and_density(x)
    if grad is not None:
        grad.mul_(density.mul_(x).add_(share))
    return share.mul_(x)


def share_and_density(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the normal distribution's share below x and its density there."""
    share = (x * math.sqrt(0.5)).erf_().add_(1).mul_(0.5)
    density = (x * x).mul_(-0.5).exp_().mul_(1 / math.sqrt(2 * math.pi))
    return share, density
