import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table

from saccade.layers.activation import Gelu, quick_gelu, quick_gradient


def test_value_and_gradient_equal_those_of_the_plain_function():
    x = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)
    got, want = Gelu()(x), torch.nn.functional.gelu(x)
    torch.testing.assert_close(got, want)
    weight = torch.randn_like(x)
    (a,), (b,) = (torch.autograd.grad((y * weight).sum(), x) for y in (got, want))
    torch.testing.assert_close(a, b)


def test_gradient_equals_finite_differences():
    x = torch.randn(20, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Gelu(), (x,))


@pytest.mark.parametrize("layout", ["plain", "channels_last", "in_pieces"])
def test_in_inference_it_is_that_of_pytorch_in_place_or_not(layout):
    x = torch.randn(2, 8, 20, 40)
    if layout == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    elif layout == "in_pieces":
        x = x[..., ::2]
    want = torch.nn.functional.gelu(x)
    with torch.inference_mode():
        assert torch.equal(Gelu()(x), want)
        assert Gelu()(x, over=True) is x
    assert torch.equal(x, want)


def test_the_quick_form_is_right_to_a_millionth():
    x = torch.linspace(-12, 12, 20_001, dtype=torch.float64, requires_grad=True)
    want = torch.nn.functional.gelu(x)
    (gradient,) = torch.autograd.grad(want.sum(), x)
    given = x.detach().float().requires_grad_()
    got = quick_gelu(given)
    assert float((got - want).detach().abs().max()) < 1e-6
    assert float((quick_gradient(torch.ones(len(x)), given.detach()) - gradient).abs().max()) < 1e-6
    torch.testing.assert_close(torch.autograd.grad(got.sum(), given)[0].double(), gradient, atol=1e-6, rtol=0)


def test_the_quick_form_keeps_half_precision_and_large_numbers():
    x = torch.tensor([-1e4, -30.0, 0.0, 30.0, 1e4], dtype=torch.float16)
    got = quick_gelu(x)
    assert got.dtype == torch.float16
    assert torch.equal(got, torch.nn.functional.gelu(x.float()).half())


def test_a_compiler_keeps_nothing_in_full_precision_for_the_quick_gradient():
    class Mlp(nn.Sequential):
        def forward(self, x):
            norm, first, second = self
            return x + second(quick_gelu(first(norm(x))))

    kept = []

    def look(graph, _):
        (out,) = graph.graph.find_nodes(op="output")
        kept.extend(node.meta["val"] for node in out.args[0] if node is not None and node.op != "placeholder")
        return graph.forward

    layers = nn.Sequential(*(Mlp(nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(24, 8)) for _ in range(4)))
    how = {"partition_fn": min_cut_rematerialization_partition, "decompositions": select_decomp_table}
    backend = aot_autograd(fw_compiler=look, bw_compiler=lambda g, _: g.forward, **how)
    compiled = torch.compile(layers, backend=backend, dynamic=False)  # whatever was compiled before
    with torch.autocast("cpu", torch.bfloat16):
        compiled(torch.randn(2, 5, 8))
    wide = [value for value in kept if value.ndim > 1 and value.shape[-1] == 24]
    assert {value.dtype for value in wide} == {torch.bfloat16}
