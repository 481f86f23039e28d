"""Convolution of each channel by itself on maps B, H, W, C, with a fast backward pass where it is compiled for a GPU.

There cuDNN's gradient of the map takes twice as long as its convolution. That gradient is a convolution again, by the
turned kernel.
"""

from typing import Any

import torch
import torch.nn.functional as F
from timm.models import register_notrace_module
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from . import depthwise_triton
from .exporting import compiles_for_gpu
from .numerics import as_products_read, upcast
from .parts import Due
from .switch import on


@register_notrace_module
class DepthwiseConv(nn.Conv2d):
    """Convolution of each channel by itself that keeps the size of a map B, H, W, C."""

    bias: nn.Parameter | None  # none where `optimize` has the layer behind add it

    def __init__(self, dim: int, kernel_size: int) -> None:
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"kernel_size={kernel_size} was given; an odd number keeps the map's size")
        super().__init__(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of the same shape."""
        if not on("depthwise"):
            return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        if compiles_for_gpu(x):
            x = as_products_read(x)
            if self.joins(x):
                grid = (x.shape[1], x.shape[2])
                return self.joined(x.flatten(1, 2), grid, residual=False).unflatten(1, grid)
            if torch.is_grad_enabled():
                return Turned.apply(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    @property
    def lays_out(self) -> bool:
        """Whether the kernel of `joined` may be the one that runs, which reads the kernels in another order."""
        return depthwise_triton.takes(self.kernel_size[0])

    def dues(self, x: Tensor, grid: tuple[int, int], before: Tensor | None = None) -> list[Due]:
        """Return what gets its gradients in parts where `joined` takes maps of a batch like another's."""
        return depthwise_triton.dues(len(x), grid, self.weight, self.bias, before)

    def joins(self, x: Tensor) -> bool:
        """Tell whether `joined` takes a map."""
        return depthwise_triton.serves(x, self.kernel_size[0])

    def joined(
        self,
        x: Tensor,
        grid: tuple[int, int],
        *,
        residual: bool = True,
        gelu: bool = False,
        before: Tensor | None = None,
    ) -> Tensor:
        """Return the convolution of a map B, H * W, C plus the map itself, and GELU of that, by one kernel.

        Args:
            x: the map.
            grid: H, W.
            residual: whether to add the map.
            gelu: whether to apply GELU.
            before: a bias inside the map, cut off there, that gets its gradient here.
        """
        how: dict[str, Any] = {"residual": residual, "gelu": gelu, "before": before}
        return depthwise_triton.apply(x, self.weight, self.bias, grid, **how)


class Turned(torch.autograd.Function):
    """The convolution, its gradient towards the map by the turned kernel and the others by the library."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return a map of the same shape."""
        ctx.save_for_backward(x, weight)
        return convolve(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients towards map, kernels and bias."""
        x, weight = ctx.saved_tensors
        of_x = convolve(grad, weight.flip(2, 3))
        of_weight = by_library(grad, x, weight)
        # Summed last, what the convolutions have made of the gradient lies in memory and is not computed once more.
        of_bias = upcast(grad).sum((0, 1, 2)).to(grad.dtype) if ctx.needs_input_grad[2] else None
        return of_x, of_weight, of_bias


def by_library(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the library's gradient of kernels C, 1, k, k from the output's and the map, both B, H, W, C."""
    grad, x = grad.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2)
    edge = [weight.shape[-1] // 2] * 2
    found: Tensor = torch.ops.aten.convolution_backward(
        grad, x, weight, None, [1, 1], edge, [1, 1], False, [0, 0], len(weight), [False, True, False]
    )[1]
    return found


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve a map B, H, W, C by kernels C, 1, k, k, keeping its size."""
    x = x.permute(0, 3, 1, 2)
    return F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2, groups=len(weight)).permute(0, 2, 3, 1)
