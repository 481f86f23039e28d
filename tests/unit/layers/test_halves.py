"""Weights converted at once, as compiled code for a GPU has them."""

import pytest
import timm
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd

import saccade  # noqa: F401
from saccade.layers import halves
from saccade.layers.linear import Linear
from support.kernels import lay_out


@pytest.fixture
def served(monkeypatch):
    """Conversion as on a GPU, to the precision of autocast on the CPU."""
    monkeypatch.setattr(halves, "serves", lambda _: torch.is_autocast_enabled("cpu"))
    monkeypatch.setattr(halves, "compiles", lambda: True)
    monkeypatch.setattr(halves, "lay_out", lay_out)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.bfloat16)
    yield
    assert not halves.HELD


def gradients(model, x, **autocast):
    model.zero_grad()
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16, **autocast):
        out = model(x)
    out.float().square().sum().backward()
    found = {name.removeprefix("_orig_mod."): p.grad for name, p in model.named_parameters() if p.grad is not None}
    return out, found


@pytest.mark.parametrize("name", ["glnet_nano", "sot_tiny", "t2t_vit_7"])
def test_a_model_gives_the_same_numbers_by_weights_converted_at_once(name, request):
    torch.manual_seed(0)
    small = {"img_size": 32 if name == "glnet_nano" else 64}
    model = timm.create_model(name, num_classes=4, **small)
    x = torch.randn(2, 3, *2 * [small["img_size"]])
    want, wanted = gradients(model.train(), x)
    request.getfixturevalue("served")
    got, found = gradients(model, x)
    assert torch.equal(got, want)
    assert found.keys() == wanted.keys()
    for key in wanted:
        assert torch.equal(found[key], wanted[key]), key


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("frozen", ["weight", "bias", "both"])
def test_a_frozen_weight_gets_no_gradient(frozen):
    layers = [Linear(4, 4), Linear(4, 3)]
    for name, parameter in layers[0].named_parameters():
        parameter.requires_grad_(frozen not in (name, "both"))
    halves.HELD.clear()
    halves.hold(layers)
    x = torch.randn(2, 4, dtype=torch.bfloat16)
    out = layers[1](layers[0](x))
    halves.release()
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16
    for layer in layers:
        for parameter in layer.parameters():
            assert (parameter.grad is not None) == parameter.requires_grad
            assert parameter.grad is None or parameter.grad.dtype == torch.float32


@pytest.mark.usefixtures("served")
def test_what_is_no_whole_weight_in_full_precision_stays_as_it_is():
    half, computed, tied = Linear(2, 2).bfloat16(), Linear(2, 2), Linear(2, 2)
    nn.utils.parametrizations.weight_norm(computed)
    tied.bias = computed.bias
    halves.hold([half, computed, tied])
    assert halves.of(half.weight) is half.weight
    assert set(halves.HELD) == {computed.bias, tied.weight}
    assert halves.of(tied.weight).dtype == torch.bfloat16
    halves.release()
    halves.hold([half])
    assert not halves.HELD


@pytest.mark.usefixtures("served")
def test_a_bias_that_is_cut_off_has_no_gradient_where_it_is_read():
    layer = Linear(3, 2)
    assert halves.cut_off(layer) is None  # nothing is converted
    halves.hold([layer])
    assert halves.cut_off(None) is None
    assert halves.cut_off(nn.Linear(3, 2)) is None
    assert halves.cut_off(layer) is layer.bias
    layer(torch.randn(4, 3, dtype=torch.bfloat16)).float().sum().backward()
    assert layer.bias.grad is None
    assert layer.weight.grad is not None
    layer.register_forward_hook(lambda *_: None)
    assert halves.cut_off(layer) is None  # somebody listens
    halves.release()


@pytest.mark.usefixtures("served")
def test_blocks_that_are_computed_again_convert_for_themselves():
    torch.manual_seed(0)
    model = timm.create_model("glnet_nano", num_classes=4).train()
    x = torch.randn(2, 3, 32, 32)
    want, wanted = gradients(model, x)
    model.set_grad_checkpointing()
    got, found = gradients(model, x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(found, wanted, rtol=0.1, atol=0.1)


def test_what_an_error_left_behind_is_not_read():
    layer, x = Linear(3, 2), torch.randn(4, 3)
    want = layer(x)
    halves.hold([layer])
    assert halves.of(layer.weight) is layer.weight
    assert torch.equal(layer(x), want)
    halves.release()


def test_nothing_is_converted_outside_of_code_for_a_gpu():
    assert not halves.serves(torch.randn(1))
    compiled = torch.compile(lambda x: x if halves.serves(x) else -x, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1)).tolist() == [-1]


def test_a_compiler_converts_lists_and_gives_the_same_numbers(monkeypatch):
    def serves(_):
        return torch.compiler.is_compiling() and torch.is_autocast_enabled("cpu")

    def keep(graph, _):
        lists.append(sum("_foreach_mul" in str(node.target) for node in graph.graph.nodes))
        return graph

    lists: list[int] = []
    torch.manual_seed(0)
    model = timm.create_model("glnet_nano", num_classes=4, depths=(1, 1, 1)).train()
    x = torch.randn(2, 3, 32, 32)
    want, wanted = gradients(model, x)
    wanted = {name: grad.clone() for name, grad in wanted.items()}
    monkeypatch.setattr(halves, "serves", serves)
    monkeypatch.setattr(halves, "lay_out", lay_out)
    usual = torch.get_autocast_dtype("cuda")
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        torch.compiler.reset()
        got, found = gradients(torch.compile(model, backend=aot_autograd(fw_compiler=keep), fullgraph=True), x)
    finally:
        torch.set_autocast_dtype("cuda", usual)
    assert lists == [6, 3]  # matrices and biases of each stage, gradients of matrices
    assert torch.equal(got, want)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert not halves.HELD
