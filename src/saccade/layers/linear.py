"""A linear layer whose weights may be converted beforehand, and whose bias may be left to the reader of its output."""

from typing import Any

import torch
import torch.nn.functional as F
from timm.models import register_notrace_module
from torch import Tensor, nn

from . import halves
from .reuse import unheard
from .switch import on


@register_notrace_module
class Linear(nn.Linear):
    """Linear layer, whose rows may be the positions of a map."""

    @classmethod
    def like(cls, layer: nn.Linear) -> "Linear":
        """Return one with the parameters of another linear layer."""
        made = cls(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        made.weight, made.bias = layer.weight, layer.bias
        return made

    def forward(self, x: Tensor) -> Tensor:
        """Return ..., out_features."""
        return F.linear(x, halves.of(self.weight), None if self.bias is None else halves.of(self.bias))


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
