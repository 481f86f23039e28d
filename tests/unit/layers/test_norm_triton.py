"""The kernels of sums and their layer norms, in Triton's interpreter, and what calls them."""

import pytest
import torch

from saccade.layers import halves, norm_triton, parts
from saccade.layers.glmix import Block, GLMix, MapAttention
from saccade.layers.linear import Linear
from support.interpreter import interpreted, not_interpreted, run_interpreted
from support.kernels import add_up, join, join_back


@pytest.mark.slow
@not_interpreted
def test_the_kernels_run_in_tritons_interpreter():
    assert "10 passed" in run_interpreted(__file__, "test_a_kernel_gives")


@interpreted
@pytest.mark.parametrize("shape", [(2, 9, 24), (1, 1, 64), (3, 50, 96), (2, 700, 33), (1, 5, 1024)])
@pytest.mark.parametrize("branches", [0, 2])
def test_a_kernel_gives_what_sums_and_norms_give(shape, branches):
    torch.manual_seed(0)
    x, *more = (torch.randn(shape) + 1 for _ in range(3))
    branch, second = more if branches else (None, None)
    weight, bias = torch.randn(shape[2]), torch.randn(shape[2])
    total, *rest = norm_triton.run_join(lambda kernel: kernel, x, branch, second, weight, bias, 1e-6)
    want, *wanted = join(x, branch, second, weight, bias, 1e-6)
    if branches:
        torch.testing.assert_close(total, want)
    else:
        assert total.numel() == 0
    torch.testing.assert_close(rest, wanted, atol=1e-5, rtol=1e-4)
    more = torch.randn(shape) if branches else None
    given = torch.randn(shape), more, torch.randn(shape), want, *rest[1:], weight
    found, parts = norm_triton.run_join_back(lambda kernel: kernel, *given)
    want, wanted = join_back(*given)
    torch.testing.assert_close(found, want, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(parts.sum(0), wanted.sum(0), atol=1e-3, rtol=1e-3)


@pytest.fixture
def plain_kernels(monkeypatch):
    """The kernels' results by plain operators, and called."""
    monkeypatch.setattr(norm_triton, "join", join)
    monkeypatch.setattr(norm_triton, "join_back", join_back)
    monkeypatch.setattr(parts, "add_up", add_up)
    monkeypatch.setattr(norm_triton, "serves", lambda *_: True)


BLOCKS = {
    "attention": lambda **options: Block(16, MapAttention(16, num_heads=2), mlp_ratio=2, **options),
    "parallel": lambda **options: Block(16, GLMix(16, num_heads=2, num_slots=4), mlp_ratio=2, **options),
    "local_global": lambda **options: Block(
        16, GLMix(16, num_heads=2, num_slots=4, mixer="local_global"), mlp_ratio=2, **options
    ),
    "window": lambda **options: Block(
        16, GLMix(16, num_heads=2, num_slots=4, local="window", window_size=2), mlp_ratio=2, **options
    ),
}


@pytest.mark.usefixtures("plain_kernels")
@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("changed", ["", "scaled", "listened", "wrapped"])
@pytest.mark.parametrize("cut", [False, True])
def test_a_block_around_the_kernels_has_the_plain_gradients(monkeypatch, kind, changed, cut):
    torch.manual_seed(0)
    block = BLOCKS[kind](pos_conv=True, layer_scale=0.5 if changed == "scaled" else None).double()
    if changed == "listened":
        block.mlp.register_forward_hook(lambda module, given, out: 2 * out)
    elif changed == "wrapped":
        block.mlp.fc2 = torch.nn.Sequential(block.mlp.fc2, torch.nn.Tanh())
    last = block.mlp.fc2[0] if changed == "wrapped" else block.mlp.fc2
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 16, 16, dtype=torch.float64, requires_grad=True)
    wrt, slope = [x, *block.parameters()], torch.randn_like(x)
    with monkeypatch.context() as less:
        less.setattr(norm_triton, "serves", lambda *_: False)
        want = block(x, (4, 4))
        wanted = torch.autograd.grad(want, wrt, slope)
    monkeypatch.setattr(halves, "compiles", lambda: True)
    if cut:  # stand-ins of the same precision: the biases' gradients come from where they are read
        layers = [m for m in block.modules() if isinstance(m, Linear)]
        for layer in layers:
            monkeypatch.setitem(halves.HELD, layer.bias, layer.bias.view(-1))
    got = block(x, (4, 4))
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got, wrt, slope), wanted, rtol=1e-8, atol=1e-9)
    if cut:
        assert halves.HELD[last.bias].requires_grad == bool(changed)


def test_the_kernels_serve_plain_norms_in_compiled_half_precision_that_nobody_listens_to(monkeypatch):
    class Somewhere(torch.Tensor):
        is_cuda = True

    x, norm = torch.randn(2, 3, 8, dtype=torch.bfloat16).as_subclass(Somewhere), torch.nn.LayerNorm(8)
    monkeypatch.setattr(norm_triton, "INSTALLED", True)
    assert not norm_triton.serves(x, norm)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert norm_triton.serves(x, norm)
    assert not norm_triton.serves(x.float(), norm)
    assert not norm_triton.serves(x, norm, torch.nn.LayerNorm(8, elementwise_affine=False))
    assert not norm_triton.serves(x, torch.nn.Identity())
    assert not norm_triton.serves(x[:0], norm)
    with torch.no_grad():
        assert not norm_triton.serves(x, norm)
    norm.register_forward_hook(lambda *_: None)
    assert not norm_triton.serves(x, norm)
