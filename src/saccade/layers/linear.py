"""A linear layer that is quicker on the CPU.

PyTorch's own takes up to a fifth longer on Arm's CPUs than the processor needs; where code can be compiled,
`product_native` does the work. Else many rows go by a 1x1 convolution: it lays out the weight in another order within
the cache, where a linear layer copies the whole of it, and the bias to every row, in every call. With few rows the bias
is better added to what came out.
"""

from typing import Any

import torch
import torch.nn.functional as F
from timm.models import register_notrace_module
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from . import halves, product_native
from .activation import Gelu, gelu_and_back
from .product import own_backward_serves
from .reuse import eager_inference, unheard
from .switch import on

FEW, MANY = 64, 1024  # rows from which on the bias is better added behind, and the convolution is quicker


@register_notrace_module
class Linear(nn.Linear):
    """Linear layer, whose rows may be the positions of a map."""

    quick_training = False  # by what differs from PyTorch's own in its rounding

    @classmethod
    def like(cls, layer: nn.Linear, *, quick_training: bool = False) -> "Linear":
        """Return one with the parameters of another linear layer."""
        made = cls(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        made.weight, made.bias, made.quick_training = layer.weight, layer.bias, quick_training
        return made

    def forward(self, x: Tensor) -> Tensor:
        """Return ..., out_features."""
        return linear(x, self.weight, self.bias, quick_training=self.quick_training)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, quick_training: bool = True) -> Tensor:
    """Return x @ weight^T + bias, ..., out."""
    if eager_inference(x):
        return multiply(x, weight, bias)
    if quick_training and own_backward_serves(x, weight):
        return _Linear.apply(x, weight, bias, False)
    return F.linear(x, halves.of(weight), None if bias is None else halves.of(bias))


def without_gradient_of_bias(layer: Any, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Run a linear layer; return its bias too if that was cut off, for the reader of the output to sum its gradient.

    To sum it here would be one more pass over what that reader writes.
    """
    bias = bias_left_to_reader(layer)
    if bias is None:
        return layer(x), None
    return F.linear(x, halves.of(layer.weight), halves.of(bias).detach()), bias


def bias_left_to_reader(layer: Any) -> Tensor | None:
    """Return the bias that `without_gradient_of_bias` would."""
    own = on("biases") and torch.is_grad_enabled() and type(layer) is Linear
    return layer.bias if own and unheard(layer) else None


def folds(act: nn.Module, layer: nn.Module, hidden: Tensor, *between: nn.Module) -> bool:
    """Tell whether training may keep what an activation is given alone, and compute again what the layer is given.

    Args:
        act: the activation.
        layer: the linear layer behind it.
        hidden: what the activation is given.
        between: modules between the two.
    """
    return (
        type(act) is Gelu
        and type(layer) is Linear
        and layer.quick_training
        and type(hidden) is Tensor  # a tracer's stand-in is not
        and own_backward_serves(hidden, layer.weight)
        and all(isinstance(m, nn.Identity) or (type(m) is nn.Dropout and not (m.training and m.p)) for m in between)
        and unheard(act, layer, *between)
    )


def after_gelu(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return what a linear layer makes of GELU where the two fold, ..., out."""
    return _Linear.apply(hidden, weight, bias, True)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activate: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.activate = activate
        return multiply(F.gelu(x) if activate else x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        grads, given = grad.reshape(-1, len(weight)), x.reshape(-1, weight.shape[1])
        through = multiply(grads, weight.t(), None).view_as(given) if of_x else None
        if ctx.activate:
            given = gelu_and_back(given, through)
        return (
            None if through is None else through.view_as(x),
            grads.t() @ given if of_weight else None,
            grads.sum(0) if of_bias else None,
            None,
        )


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x @ weight^T + bias by whatever is quicker, where no gradient is asked for."""
    if x.dim() > 1 and product_native.serves(rows := x.flatten(0, -2), weight.t(), bias):
        return product_native.multiply(rows, weight.t(), bias).view(*x.shape[:-1], -1)
    if not own_way(x, weight):
        return F.linear(x, weight, bias)
    if x.numel() < MANY * x.shape[-1] or not weight.is_contiguous():  # then it lies as a linear layer reads it
        out = F.linear(x, weight)
        return out if bias is None else out.add_(bias)
    rows = x.reshape(1, -1, 1, x.shape[-1]).permute(0, 3, 1, 2)  # 1, in, N, 1 as it lies
    out = F.conv2d(rows, weight.view(*weight.shape, 1, 1), bias)
    return out.permute(0, 2, 3, 1).reshape(*x.shape[:-1], len(weight))


def own_way(x: Tensor, weight: Tensor) -> bool:
    """Tell whether PyTorch's own is the slower way."""
    return (
        product_native.arm_compute()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.numel() >= FEW * x.shape[-1]
        and not torch.is_autocast_enabled("cpu")
    )
