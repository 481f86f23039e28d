"""A linear layer gives what PyTorch's own does, to the bit, with the same weights."""

import pytest
import torch
from torch import nn

from saccade.layers.linear import Linear


@pytest.mark.parametrize("shape", [(7,), (0, 7), (64, 7), (2, 9, 11, 7)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_it_answers_and_learns_as_the_layer_that_it_is_like(shape, bias, training):
    layer, x = nn.Linear(7, 5, bias=bias), torch.randn(shape, requires_grad=True)
    wrt, found = [x, *layer.parameters()], []
    for made in (layer, Linear.like(layer)):
        with torch.set_grad_enabled(training):
            y = made(x)
        found.append([y, *(torch.autograd.grad(y.square().sum(), wrt) if training else ())])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_it_shares_the_weights_of_the_layer_that_it_is_like():
    layer = nn.Linear(7, 5)
    made = Linear.like(layer)
    assert made.weight is layer.weight
    assert made.bias is layer.bias
    assert list(made.state_dict()) == list(layer.state_dict())
