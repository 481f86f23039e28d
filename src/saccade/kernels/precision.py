"""Weights in half precision for one call, those of many layers converted at once.

Autocast converts a weight where a layer reads it, and its gradient where that was made. Compiled, each is a kernel that
does next to nothing, and starting them is what the GPU waits for. Here one kernel converts a hundred; the numbers are
the same.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .compiling import compiles_for_gpu
from .fused import unheard


class Run:
    """What linear layers read instead of their weights during one call, and what is done with their biases.

    Args:
        layers: whose weights are converted to the precision of autocast, if there is a map and the call asks for it.
        x: the map that the call is given.
    """

    def __init__(self, layers: Iterable[nn.Linear] = (), x: Tensor | None = None) -> None:
        self.held: dict[Tensor, Tensor] = {}  # by the weight that it stands for
        self.converts = x is not None and converts(x)
        if not self.converts:
            return
        found = dict.fromkeys(w for layer in layers for w in (layer.weight, layer.bias) if _is_full_precision(w))
        matrices, biases = [w for w in found if w.dim() > 1], [w for w in found if w.dim() == 1]
        dtype = torch.get_autocast_dtype("cuda")
        if matrices and torch.is_grad_enabled():
            self.held.update(zip(matrices, Converted.apply(dtype, *matrices), strict=True))
        elif matrices:  # torch 2.11 loses outputs of a function of many tensors that it compiles without gradients
            self.held.update(zip(matrices, convert(matrices, dtype), strict=True))
        if biases:  # their gradients are converted where they are summed
            self.held.update(zip(biases, convert(biases, dtype), strict=True))

    def linear(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Run a linear layer, or any other module in its place."""
        if type(layer) is not nn.Linear or not self.held:
            return layer(x)
        bias = None if layer.bias is None else self.held.get(layer.bias, layer.bias)
        return F.linear(x, self.held.get(layer.weight, layer.weight), bias)

    def cut_off(self, layer: nn.Module | None) -> Tensor | None:
        """Return the bias of a layer that `linear` is about to run, now without a gradient there, or None.

        The reader of the output sums its gradient: at the layer it would be one more pass over what that reader writes.
        """
        if type(layer) is not nn.Linear or layer.bias is None or not torch.is_grad_enabled() or not unheard(layer):
            return None
        self.held[layer.bias] = self.held.get(layer.bias, layer.bias).detach()
        return layer.bias


def converts(x: Tensor) -> bool:
    """Whether weights of the layers that read a tensor are converted: under autocast, in code for a GPU."""
    return compiles_for_gpu(x) and torch.is_autocast_enabled("cuda")


def as_products_read(x: Tensor) -> Tensor:
    """Return `x` in the precision that autocast on a GPU brings it to in every product: converted and kept once."""
    autocasts = x.is_cuda and torch.is_autocast_enabled("cuda")
    return x.to(torch.get_autocast_dtype("cuda")) if autocasts else x


def _is_full_precision(weight: Tensor | None) -> bool:
    """Whether a weight is whole and in full precision; one that is sharded or computed is of another type."""
    return type(weight) is nn.Parameter and weight.dtype == torch.float32


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
