"""Parts of a model exchanged for others that compute the same faster."""

import timm.layers
from torch import nn

from ..layers.activation import Gelu


def quicken(model: nn.Module) -> int:
    """Give a model that trains on the CPU activations with a fast backward pass; return how many.

    The answers stay the same bits; gradients differ by rounding. There is nothing to learn in an activation, so weights
    keep their names.
    """
    found = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if (type(child) is timm.layers.GELU or (type(child) is nn.GELU and child.approximate == "none"))
        and not (child._forward_hooks or child._forward_pre_hooks)  # nobody listens to it
    ]
    for parent, name in found:
        setattr(parent, name, Gelu())
    return len(found)
