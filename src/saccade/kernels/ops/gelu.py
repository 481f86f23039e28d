"""GELU by a shorter formula, for a GPU in half precision.

There it takes longer to compute than to read and write: the error function is some thirty instructions a number, and
half of that by a formula right to 3e-7.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..triton.depthwise import kernel
from ..triton.language import launchable

VALUES = 2048  # that a program holds


class Quick(torch.autograd.Function):
    """GELU in the precision of its input, computed in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        ctx.save_for_backward(x)
        return (x * quick_share(x.float())[0]).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return the gradient of the input, in its precision.

        A compiler may compute ahead, and keep in float32, what the input alone decides; nothing of what depends on
        `grad`.
        """
        (x,) = ctx.saved_tensors
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


@torch.library.triton_op("saccade::gelu_forward", mutates_args={})
def gelu(x: Tensor) -> Tensor:
    """Return GELU(x); a compiler's own kernel reads and writes less than half of what the memory could."""
    x = x.contiguous()
    out, count = torch.empty_like(x), x.numel()
    launchable(kernel("activate"))[(-(-count // VALUES),)](x, out, count, VALUES, num_warps=8)
    return out


@torch.library.triton_op("saccade::gelu_backward", mutates_args={})
def gelu_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of x from that of GELU(x), which a compiler by itself writes anew for each of its readers."""
    grad, x = grad.contiguous(), x.contiguous()
    out, count = torch.empty_like(x), x.numel()
    launchable(kernel("activate_back"))[(-(-count // VALUES),)](grad, x, out, count, VALUES, num_warps=8)
    return out


REFERENCES = {"gelu": F.gelu, "gelu_gradient": torch.ops.aten.gelu_backward}
