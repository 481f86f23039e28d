"""Weights converted at once, and biases that their readers sum."""

import pytest
import torch
from torch import nn

from saccade.kernels import precision
from saccade.kernels.precision import Run
from support.kernels import Somewhere


@pytest.fixture
def served(monkeypatch):
    """Conversion as on a GPU, to the precision of autocast on the CPU."""
    monkeypatch.setattr(precision, "converts", lambda _: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.bfloat16)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("frozen", ["weight", "bias", "both"])
def test_a_frozen_weight_gets_no_gradient(frozen):
    layers = [nn.Linear(4, 4), nn.Linear(4, 3)]
    for name, parameter in layers[0].named_parameters():
        parameter.requires_grad_(frozen not in (name, "both"))
    x = torch.randn(2, 4, dtype=torch.bfloat16)
    run = Run(layers, x)
    out = run.linear(layers[1], run.linear(layers[0], x))
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16
    for layer in layers:
        for parameter in layer.parameters():
            assert (parameter.grad is not None) == parameter.requires_grad
            assert parameter.grad is None or parameter.grad.dtype == torch.float32


@pytest.mark.usefixtures("served")
def test_what_is_no_whole_weight_in_full_precision_stays_as_it_is():
    half, computed, tied, x = nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2), nn.Linear(2, 2), torch.randn(1, 2)
    nn.utils.parametrizations.weight_norm(computed)
    tied.bias = computed.bias
    assert set(Run([half, computed, tied], x).held) == {computed.bias, tied.weight}
    assert not Run([half], x).held
    assert not Run([tied]).held


def test_a_bias_that_is_cut_off_has_no_gradient_where_it_is_read():
    layer, x, run = nn.Linear(3, 2), torch.randn(4, 3), Run()
    assert run.cut_off(None) is None
    assert run.cut_off(nn.Sequential(layer)) is None
    assert run.cut_off(nn.Linear(3, 2, bias=False)) is None
    with torch.no_grad():
        assert run.cut_off(layer) is None
    assert run.cut_off(layer) is layer.bias
    out = run.linear(layer, x)
    assert torch.equal(out, layer(x))
    out.sum().backward()
    assert layer.bias.grad is None
    assert layer.weight.grad is not None
    layer.register_forward_hook(lambda *_: None)
    assert Run().cut_off(layer) is None  # somebody listens


def test_a_module_in_the_place_of_a_linear_layer_is_called():
    layer, x, run = nn.Sequential(nn.Linear(3, 2), nn.Tanh()), torch.randn(4, 3), Run()
    assert run.cut_off(nn.Linear(3, 2)) is not None
    assert torch.equal(run.linear(layer, x), layer(x))


def test_nothing_is_converted_outside_of_code_for_a_gpu():
    assert not precision.converts(torch.randn(1))
    torch.compiler.reset()
    compiled = torch.compile(lambda x: x if precision.converts(x) else -x, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1)).tolist() == [-1]


def test_autocast_on_a_gpu_decides_what_products_read(monkeypatch):
    x = torch.randn(2)
    there = x.as_subclass(Somewhere)
    assert precision.as_products_read(there) is there
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.bfloat16)
    assert precision.as_products_read(there).dtype == torch.bfloat16
    assert precision.as_products_read(x) is x
