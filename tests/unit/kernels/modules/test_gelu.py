import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table

from saccade.kernels.modules import gelu as module
from saccade.kernels.modules.gelu import FusedGelu
from saccade.kernels.ops.gelu import Quick
from support.kernels import Somewhere


def test_the_quick_form_is_right_to_a_millionth():
    x = torch.linspace(-12, 12, 20_001, dtype=torch.float64, requires_grad=True)
    want = torch.nn.functional.gelu(x)
    (gradient,) = torch.autograd.grad(want.sum(), x)
    given = x.detach().float().requires_grad_()
    got = Quick.apply(given)
    assert float((got - want).detach().abs().max()) < 1e-6
    torch.testing.assert_close(torch.autograd.grad(got.sum(), given)[0].double(), gradient, atol=1e-6, rtol=0)


def test_the_quick_form_keeps_half_precision_and_large_numbers():
    x = torch.tensor([-1e4, -30.0, 0.0, 30.0, 1e4], dtype=torch.float16)
    got = Quick.apply(x)
    assert got.dtype == torch.float16
    assert torch.equal(got, torch.nn.functional.gelu(x.float()).half())


def test_a_compiler_keeps_nothing_in_full_precision_for_the_quick_gradient():
    class Mlp(nn.Sequential):
        def forward(self, x):
            norm, first, second = self
            return x + second(Quick.apply(first(norm(x))))

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


def test_it_takes_compiled_half_precision_on_a_gpu_and_exact_gelu_alone(monkeypatch):
    act, x = FusedGelu(), torch.randn(3, dtype=torch.bfloat16).as_subclass(Somewhere)
    assert not act.takes(x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert act.takes(x)
    assert not act.takes(x.float())
    assert FusedGelu.refuses(nn.GELU()) is None
    assert FusedGelu.refuses(nn.GELU("tanh")) == "it uses a different approximation of GELU"


def test_inference_has_a_kernel_and_training_operators(monkeypatch):
    act, x = FusedGelu(), torch.randn(5)
    want, called = nn.functional.gelu(x), []
    monkeypatch.setattr(FusedGelu, "takes", lambda *_: True)
    monkeypatch.setattr(module, "INSTALLED", True)
    monkeypatch.setattr(module, "gelu", lambda x: called.append(True) or nn.functional.gelu(x))
    torch.testing.assert_close(act(x), want, atol=1e-6, rtol=0)
    assert not called
    with torch.no_grad():
        assert torch.equal(act(x), want)
    assert called
