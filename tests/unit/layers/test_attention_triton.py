"""The kernels of attention among few tokens, in Triton's interpreter, and what calls them."""

import pytest
import torch

from saccade.layers import attention, attention_triton, parts
from saccade.layers.attention import SelfAttention
from saccade.layers.linear import Linear
from support.interpreter import interpreted, not_interpreted, run_interpreted
from support.kernels import add_up, attend, attend_back


@pytest.mark.slow
@not_interpreted
def test_the_kernels_run_in_tritons_interpreter():
    assert "7 passed" in run_interpreted(__file__, "test_a_kernel_gives")


@interpreted
@pytest.mark.parametrize(
    ("images", "tokens", "heads", "width"),
    [(2, 16, 2, 32), (3, 49, 3, 24), (1, 1, 2, 8), (2, 64, 1, 64), (2, 17, 4, 32), (1, 65, 2, 16), (1, 128, 1, 33)],
)
def test_a_kernel_gives_what_plain_attention_gives(images, tokens, heads, width):
    torch.manual_seed(0)
    qkv, grad = torch.randn(images, tokens, 3 * heads * width), torch.randn(images, tokens, heads * width)
    torch.testing.assert_close(attention_triton.run_attend(lambda kernel: kernel, qkv, heads), attend(qkv, heads))
    for sums in (True, False):
        got = attention_triton.run_attend_back(lambda kernel: kernel, grad, qkv, heads, sums)
        torch.testing.assert_close(got, attend_back(grad, qkv, heads, sums), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [9, 100])
def test_attention_around_the_kernel_has_the_plain_gradients(tokens, monkeypatch):
    torch.manual_seed(0)
    layer = SelfAttention(24, num_heads=3, qkv_bias=True).double()
    x = torch.randn(2, tokens, 24, dtype=torch.float64, requires_grad=True)
    slope = torch.randn_like(x)
    wrt = [x, *layer.parameters()]
    want = torch.autograd.grad(layer(x), wrt, slope)
    called = []
    monkeypatch.setattr(attention, "own_way", lambda _: True)
    unserved = torch.autograd.grad(layer(x), wrt, slope)
    monkeypatch.setattr(attention_triton, "serves", lambda *_: True)
    monkeypatch.setattr(attention_triton, "attend", lambda *given: called.append("there") or attend(*given))
    monkeypatch.setattr(attention_triton, "attend_back", lambda *given: called.append("back") or attend_back(*given))
    monkeypatch.setattr(parts, "add_up", add_up)
    served = torch.autograd.grad(layer(x), wrt, slope)
    layer.qkv = Linear.like(layer.qkv)  # leaves the bias's gradient to the kernel
    summed = torch.autograd.grad(layer(x), wrt, slope)
    assert called == ["there", "back"] * 2
    for got in (unserved, served, summed):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_a_kernel_serves_few_tokens_of_narrow_heads_in_half_precision(monkeypatch):
    class Somewhere:
        is_cuda = True

        def __init__(self, tokens, width, dtype=torch.bfloat16):
            self.shape, self.dtype = (2, tokens, 2 * width), dtype

    monkeypatch.setattr(attention_triton, "INSTALLED", True)
    monkeypatch.setattr(attention_triton, "shared_memory", lambda _: 101_376)
    assert not attention_triton.serves(Somewhere(64, 32), 32)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert attention_triton.serves(Somewhere(64, 32), 32)
    assert attention_triton.serves(Somewhere(128, 64), 64)
    assert not attention_triton.serves(Somewhere(129, 32), 32)
    assert not attention_triton.serves(Somewhere(64, 96), 96)
    assert not attention_triton.serves(Somewhere(64, 32, torch.float32), 32)
    monkeypatch.setattr(attention_triton, "shared_memory", lambda _: 65_536)
    assert not attention_triton.serves(Somewhere(64, 32), 32)
    monkeypatch.setattr(attention_triton, "shared_memory", lambda _: 232_448)
    assert attention_triton.serves(Somewhere(64, 32), 32)
    monkeypatch.setattr(attention_triton, "INSTALLED", False)
    assert not attention_triton.serves(Somewhere(64, 32), 32)
