"""Weights in half precision, those of many layers at once.

Autocast converts a weight where a layer reads it, and its gradient where that was made. Compiled, each is a kernel that
does next to nothing: a third of all that a step of a deep network starts, and starting them is what the GPU waits for.
Here one kernel converts a hundred; the numbers are the same. Kernels of convolutions of single channels are laid out
with it as they are read.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .exporting import compiles_for_gpu
from .reuse import unheard
from .small_triton import MOST, VALUES, lay_out, split
from .switch import on

HELD: dict[Tensor, Tensor] = {}  # weights and what stands for them, while the layers that have them run


def of(weight: Tensor) -> Tensor:
    """Return what stands for a weight: itself where nothing was converted, and in code that is not being compiled."""
    return HELD.get(weight, weight) if HELD and compiles() else weight


def compiles() -> bool:
    """Tell whether code is being compiled; what an error has left behind is nobody else's."""
    return torch.compiler.is_compiling()


def serves(x: Tensor) -> bool:
    """Tell whether weights of the layers that read a tensor are converted: under autocast, in code for a GPU."""
    return on("halves") and compiles_for_gpu(x) and torch.is_autocast_enabled("cuda")


def hold(layers: Iterable[nn.Linear], kernels: Iterable[Tensor] = ()) -> None:
    """Convert weights to the precision of autocast, until `release`.

    Args:
        layers: whose weights and biases are.
        kernels: of convolutions of single channels, C, 1, k, k; what stands for them is k * k, C, without a gradient.
    """
    found = dict.fromkeys(weight for layer in layers for weight in (layer.weight, layer.bias) if _plain(weight))
    matrices, biases = [x for x in found if x.dim() > 1], [x for x in found if x.dim() == 1]
    dtype = torch.get_autocast_dtype("cuda")
    HELD.clear()
    if matrices:
        HELD.update(zip(matrices, Converted.apply(dtype, *matrices), strict=True))
    if biases:  # their gradients are converted where they are summed
        HELD.update(zip(biases, convert(biases, dtype), strict=True))
    left = list(dict.fromkeys(kernel for kernel in kernels if _plain(kernel)))
    while left:
        some, left = left[:MOST], left[MOST:]
        laid = split(lay_out([kernel.detach() for kernel in some], dtype), [one.numel() for one in some], VALUES)
        HELD.update((kernel, cells.view(-1, len(kernel))) for kernel, cells in zip(some, laid, strict=True))


def _plain(weight: Tensor | None) -> bool:
    """Tell whether a weight is whole and in full precision; one that is sharded or computed is of another type."""
    return type(weight) is nn.Parameter and weight.dtype == torch.float32


def cut_off(layer: nn.Module | None) -> Tensor | None:
    """Return the bias of a layer, now without a gradient there, for the reader of the output to sum it; or none.

    To sum it at the layer would be one more pass over what that reader writes.
    """
    bias = can_be_cut_off(layer)
    if bias is not None:
        HELD[bias] = HELD[bias].detach()
    return bias


def can_be_cut_off(layer: nn.Module | None) -> Tensor | None:
    """Return what `cut_off` would."""
    bias = layer.bias if isinstance(layer, nn.Linear) and on("biases") else None
    return None if layer is None or bias is None or of(bias) is bias or not unheard(layer) else bias


def release() -> None:
    """Forget what was converted."""
    HELD.clear()


class Converted(torch.autograd.Function):
    """Tensors in another precision, and their gradients back in full, all at once."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004
        """Return the tensors."""
        return convert(tensors, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of those that ask for one."""
        asked = [i for i in range(len(grads)) if ctx.needs_input_grad[i + 1]]
        found: list[Tensor | None] = [None] * len(grads)
        for i, grad in zip(asked, convert([grads[i] for i in asked], torch.float32), strict=True):
            found[i] = grad
        return None, *found


def convert(tensors: Iterable[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return tensors in another precision; what is done to a list is compiled to one kernel, the conversion with it."""
    return tuple(x.to(dtype) for x in torch._foreach_mul(tuple(tensors), 1.0))
