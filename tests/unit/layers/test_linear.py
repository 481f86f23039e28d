"""A linear layer gives what PyTorch's own does, whatever way it takes."""

import pytest
import torch
import torch.nn.functional as F

from saccade.layers import linear
from saccade.layers.linear import FEW, Linear


@pytest.fixture(autouse=True)
def convolutions(monkeypatch):
    monkeypatch.setattr(linear, "_arm_compute", lambda: True)


@pytest.mark.parametrize("shape", [(FEW, 7), (2, 9, 11, 7), (3, 50, 7)])
@pytest.mark.parametrize("bias", [True, False])
def test_convolution_equals_linear_layer(shape, bias):
    layer = Linear(7, 5, bias=bias)
    for x in (torch.randn(shape), torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))):
        with torch.inference_mode():
            assert linear.convolves(x, layer.weight)
            got = layer(x)
        assert got.shape == (*shape[:-1], 5)
        torch.testing.assert_close(got, F.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("x", [torch.zeros(7), torch.zeros(3, 7), torch.zeros(0, 7)])
def test_few_rows_go_the_usual_way(x):
    layer = Linear(7, 5)
    with torch.inference_mode():
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


def test_half_precision_and_other_layouts_go_the_usual_way():
    x = torch.randn(2 * FEW, 7)
    layer = Linear(7, 5)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert not linear.convolves(x.double(), layer.double().weight)
    turned = Linear(7, 5)
    turned.weight.data = turned.weight.data.t().contiguous().t()
    assert not linear.convolves(x, turned.weight)


def test_gradients_are_those_of_a_linear_layer():
    layer, x = Linear(7, 5), torch.randn(2 * FEW, 7, requires_grad=True)
    layer(x).square().sum().backward()
    want = torch.autograd.grad(F.linear(x, layer.weight, layer.bias).square().sum(), x)[0]
    assert torch.equal(x.grad, want)
