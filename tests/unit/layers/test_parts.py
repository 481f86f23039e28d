"""Gradients that kernels leave in parts, and what is done to several small arrays by one kernel."""

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from saccade.layers import halves, norm_triton, parts
from saccade.layers.glmix import Block, GLMix, MapAttention
from saccade.layers.linear import Linear
from saccade.layers.parts import Due, close_ports, open_ports, ports_for
from saccade.layers.small_triton import MOST, VALUES, WIDE, run_add_up, run_lay_out, split
from saccade.models._backbone import run_blocks
from support.interpreter import interpreted, not_interpreted, run_interpreted
from support.kernels import add_up, by_plain_operators

SHAPES = [[(1, 5)], [(64, 32), (200, 70)], [(65, 129), (3, 8), (700, 1), (1, 1), *5 * [(5, 17)], (600, 9)]]


@pytest.mark.slow
@not_interpreted
def test_the_kernel_runs_in_tritons_interpreter():
    assert f"{len(SHAPES) + 1} passed" in run_interpreted(__file__, "test_the_kernel_adds or test_the_kernel_lays")


@interpreted
@pytest.mark.parametrize("shapes", SHAPES)
def test_the_kernel_adds_up_all_parts(shapes):
    torch.manual_seed(0)
    given = [torch.randn(shape) for shape in shapes]
    found = split(run_add_up(lambda kernel: kernel, given), [shape[1] for shape in shapes], WIDE)
    torch.testing.assert_close(found, [one.sum(0) for one in given], atol=1e-4, rtol=1e-5)


@interpreted
def test_the_kernel_lays_out_kernels_as_they_are_read():
    torch.manual_seed(0)
    given = [torch.randn(channels, 1, side, side) for channels, side in ((8, 3), (16, 5), (768, 3), (40, 5))]
    found = split(run_lay_out(lambda kernel: kernel, given, torch.float16), [one.numel() for one in given], VALUES)
    for one, laid in zip(given, found, strict=True):
        assert torch.equal(laid.view(-1, len(one)), one.half().flatten(1).t())


def mixer(**options):
    return GLMix(16, num_heads=2, num_slots=4, **options)


BLOCKS = {
    "attention": lambda: MapAttention(16, num_heads=2),
    "parallel": mixer,
    "constant": lambda: mixer(slot_scale="constant"),
    "learned": lambda: mixer(slots="learned"),
    "kmeans": lambda: mixer(clustering="kmeans"),
    "local": lambda: mixer(mixer="local"),
    "local_global": lambda: mixer(mixer="local_global"),
    "global_local": lambda: mixer(mixer="global_local"),
    "window": lambda: mixer(local="window", window_size=2),
}


def block_of(kind, **options):
    torch.manual_seed(0)
    block = Block(16, BLOCKS[kind](), mlp_ratio=2, pos_conv=True, conv_mlp=True, **options).double()
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.3)
    return block


def passed(block, x):
    wrt = [x, *(one for one in block.parameters() if one.requires_grad)]
    out = block(x, (4, 4))
    return out.detach(), *torch.autograd.grad(out, wrt, torch.cos(out.detach()), allow_unused=True)


def stand_ins(block, monkeypatch):
    """Have biases cut off: their gradients come from where they are read."""
    for layer in block.modules():
        if isinstance(layer, Linear):
            monkeypatch.setitem(halves.HELD, layer.bias, layer.bias.view(-1))


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("changed", ["", "scaled", "frozen", "half frozen", "listened", "norm listened", "foreign"])
@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_has_the_plain_gradients_by_one_sum(monkeypatch, kind, changed, cut):
    block = block_of(kind, layer_scale=0.5 if changed == "scaled" else None)
    if "frozen" in changed:
        for i, parameter in enumerate(block.parameters()):
            parameter.requires_grad_(changed == "half frozen" and i % 2 == 0)
    elif "listened" in changed:
        heard = block.norm2 if changed.startswith("norm") else block.mlp
        heard.register_forward_hook(lambda module, given, out: 2 * out)
    elif changed == "foreign":  # attention by a module of somebody else
        home = getattr(block.mixer, "global_branch", block.mixer)
        home.attn = nn.Linear(16, 16).double()
    x = torch.randn(3, 16, 16, dtype=torch.float64, requires_grad=True)
    want = passed(block, x)
    called = by_plain_operators(monkeypatch)
    if changed == "norm listened":
        monkeypatch.setattr(norm_triton, "serves", lambda *_: False)
    if cut:
        stand_ins(block, monkeypatch)
    got = passed(block, x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert not parts.PORTS
    if changed in ("", "scaled"):
        assert called.count("add_up") == 1
    elif changed == "frozen":
        assert "add_up" not in called


def test_a_compiler_sees_one_sum(monkeypatch):
    def count(graph, _):
        sums.append(sum(node.target is torch.ops.aten.cat.default for node in graph.graph.nodes))
        return graph

    sums: list[int] = []
    block = block_of("local")
    x = torch.randn(3, 16, 16, dtype=torch.float64, requires_grad=True)
    want = passed(block, x)
    by_plain_operators(monkeypatch, listens=False)
    torch.compiler.reset()
    got = passed(torch.compile(block, backend=aot_autograd(fw_compiler=count), fullgraph=True), x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert sums == [0, 6]  # one adds up; those of two norms and three convolutions make the parts
    assert not parts.PORTS


def test_a_compiled_block_that_is_computed_again_opens_no_ports(monkeypatch):
    block = block_of("local")
    x = torch.randn(3, 16, 16, dtype=torch.float64, requires_grad=True)
    want = passed(block, x)
    by_plain_operators(monkeypatch, listens=False)
    torch.compiler.reset()

    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = block

        def forward(self, x, grid):
            return run_blocks([self.block], x, grid, recompute=True)

    got = passed(torch.compile(Again(), backend="aot_eager", fullgraph=True), x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert parts.may_open_ports()


def test_ports_pass_a_break_of_the_graph(monkeypatch):
    block = block_of("local")
    block.mixer.register_forward_hook(lambda *_: torch._dynamo.graph_break())
    x = torch.randn(3, 16, 16, dtype=torch.float64, requires_grad=True)
    want = passed(block, x)
    by_plain_operators(monkeypatch, listens=False)
    torch.compiler.reset()
    got = passed(torch.compile(block, backend="aot_eager"), x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert not parts.PORTS


def test_a_port_is_for_the_same_weights_in_as_many_parts(monkeypatch):
    monkeypatch.setattr(parts, "add_up", add_up)
    weight, bias, other, frozen = (nn.Parameter(torch.randn(3)) for _ in range(4))
    frozen.requires_grad_(False)
    open_ports([Due(2, (weight, bias)), Due(4, (other, None)), Due(5, (frozen,))])
    assert not ports_for([Due(2, (weight, bias))])  # nothing is being compiled
    monkeypatch.setattr(halves, "compiles", lambda: True)
    for due in (Due(3, (weight, bias)), Due(2, (weight, other)), Due(2, (weight, None)), Due(2, (bias,))):
        assert not ports_for([due])
    assert not ports_for([Due(2, (weight, bias)), Due(5, (frozen,))])
    one, two = ports_for([Due(2, (weight, bias)), Due(4, (other, None))])
    assert one.shape == (2, 6)
    assert two.shape == (4, 6)
    close_ports()
    assert not ports_for([Due(2, (weight, bias))])
    given = torch.randn(2, 6), torch.randn(4, 6)
    torch.autograd.backward([one, two], given)
    torch.testing.assert_close(torch.cat([weight.grad, bias.grad]), given[0].sum(0))
    torch.testing.assert_close(other.grad, given[1].sum(0)[:3])


def test_more_arrays_than_the_kernel_takes_are_added_up_by_more_of_them(monkeypatch):
    counts = []
    monkeypatch.setattr(parts, "add_up", lambda arrays: counts.append(len(arrays)) or add_up(arrays))
    given = [torch.randn(2, i) for i in range(1, MOST + 4)]
    for got, one in zip(parts.add_all_up(given), given, strict=True):
        torch.testing.assert_close(got, one.sum(0))
    assert counts == [MOST, 3]
