"""A linear layer gives what PyTorch's own does, whatever way it takes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from saccade.layers import linear, product_native
from saccade.layers.linear import FEW, MANY, Linear, folds
from saccade.layers.transformer import Block


@pytest.fixture(autouse=True)
def arm(monkeypatch):
    monkeypatch.setattr(product_native, "arm_compute", lambda: True)


@pytest.mark.parametrize("shape", [(FEW, 7), (2, 9, 11, 7), (3, 50, 7), (MANY, 7), (2, 25, 41, 7)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_own_way_equals_linear_layer(monkeypatch, shape, bias, turned):
    layer, convolved = Linear(7, 5, bias=bias), []
    if turned:
        layer.weight.data = layer.weight.data.t().contiguous().t()
    real = F.conv2d
    monkeypatch.setattr(F, "conv2d", lambda *args: convolved.append(args) or real(*args))
    for x in (torch.randn(shape), torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))):
        with torch.inference_mode():
            assert linear.own_way(x, layer.weight)
            got = layer(x)
        assert bool(convolved) is (not turned and x.numel() >= 7 * MANY)
        assert got.shape == (*shape[:-1], 5)
        torch.testing.assert_close(got, F.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("x", [torch.zeros(7), torch.zeros(3, 7), torch.zeros(0, 7)])
def test_few_rows_go_the_usual_way(x):
    layer = Linear(7, 5)
    with torch.inference_mode():
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


def test_other_precisions_go_the_usual_way():
    x = torch.randn(2 * FEW, 7)
    layer = Linear(7, 5)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert not linear.own_way(x.double(), layer.double().weight)


@pytest.mark.parametrize("bias", [True, False])
def test_quick_training_gives_the_same_results_and_gradients(bias):
    layer, x = nn.Linear(7, 5, bias=bias), torch.randn(2, FEW, 7, requires_grad=True)
    wrt = [x, *layer.parameters()]
    found = [made(x) for made in (layer, Linear.like(layer, quick_training=True))]
    assert type(found[1].grad_fn) is not type(found[0].grad_fn)
    torch.testing.assert_close(*found)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), wrt) for y in found), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_a_feed_forward_part_that_keeps_less_has_the_same_gradients(drop):
    part = Block(8, 2, mlp_ratio=3.0, proj_drop=drop).mlp
    x = torch.randn(3, 50, 8, requires_grad=True)
    wrt, found = [x, *part.parameters()], []
    assert folds(part.act, part.fc2, x, part.drop1, part.norm) == (drop == 0)
    for listen in (False, True):
        torch.manual_seed(0)
        handle = part.act.register_full_backward_hook(lambda *_: None) if listen else None
        found.append(torch.autograd.grad(part(x).square().sum(), wrt))
        if handle is not None:
            assert not folds(part.act, part.fc2, x, part.drop1, part.norm)
            handle.remove()
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_are_those_of_a_linear_layer():
    layer, x = Linear(7, 5), torch.randn(2 * FEW, 7, requires_grad=True)
    layer(x).square().sum().backward()
    want = torch.autograd.grad(F.linear(x, layer.weight, layer.bias).square().sum(), x)[0]
    assert torch.equal(x.grad, want)
