"""What is around the operator of attention by cuDNN, which itself needs a GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

from saccade.layers import attention, attention_cudnn, attention_triton
from saccade.layers.attention import SelfAttention


def plain(qkv, heads):
    q, k, v = attention_cudnn.by_heads(qkv, heads)
    out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return out, torch.logsumexp(q @ k.mT * q.shape[-1] ** -0.5, -1).float()


def plain_back(grad, qkv, out, sums, heads):
    assert out.shape == grad.shape
    assert sums.shape == (len(qkv), heads, qkv.shape[1])
    qkv = qkv.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(plain(qkv, heads)[0], qkv, grad)[0]


@pytest.fixture(scope="module")
def on_the_cpu():
    """The operators by plain ones on the CPU."""
    library = torch.library.Library("saccade", "IMPL", "CPU")
    library.impl("attend_by_cudnn", plain)
    library.impl("attend_by_cudnn_back", plain_back)
    yield
    library._destroy()


@pytest.mark.usefixtures("on_the_cpu")
def test_attention_around_the_operator_has_the_plain_gradients(monkeypatch):
    torch.manual_seed(0)
    layer = SelfAttention(24, num_heads=3, qkv_bias=True).double()
    x = torch.randn(2, 200, 24, dtype=torch.float64, requires_grad=True)
    wrt, slope = [x, *layer.parameters()], torch.randn_like(x)
    want = layer(x)
    wanted = torch.autograd.grad(want, wrt, slope)
    monkeypatch.setattr(attention, "own_way", lambda _: True)
    asked = []
    monkeypatch.setattr(attention_cudnn, "serves", lambda *given: asked.append(given[1:]) or True)
    got = layer(x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got, wrt, slope), wanted, rtol=1e-9, atol=1e-10)
    assert asked == [(3, 8)]


@pytest.mark.usefixtures("on_the_cpu")
def test_a_compiler_is_told_the_shapes():
    qkv = torch.randn(2, 9, 24)
    out, sums = torch.ops.saccade.attend_by_cudnn(qkv, 2)
    back = torch.ops.saccade.attend_by_cudnn_back(out, qkv, out, sums, 2)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(qkv)
        told = torch.ops.saccade.attend_by_cudnn(fake, 2)
        told_back = torch.ops.saccade.attend_by_cudnn_back(told[0], fake, *told, 2)
    for one, other in zip((out, sums, back), (*told, told_back), strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


def test_it_serves_where_pytorch_would_take_cudnn(monkeypatch):
    class Somewhere:
        is_cuda, device = True, torch.device("cuda", 1)

        def __init__(self, dtype=torch.bfloat16):
            self.shape, self.dtype = (2, 196, 64), dtype

    asked = []
    monkeypatch.setattr(attention_cudnn, "_chosen", lambda *given: asked.append(given) or True)
    assert not attention_cudnn.serves(Somewhere(), 2, 32)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert attention_cudnn.serves(Somewhere(), 2, 32)
    assert asked == [(1, False, 196, 2, 32)]
    assert not attention_cudnn.serves(Somewhere(torch.float32), 2, 32)
    with torch.no_grad():
        assert not attention_cudnn.serves(Somewhere(), 2, 32)
    monkeypatch.setattr(attention_cudnn, "_chosen", lambda *_: False)
    assert not attention_cudnn.serves(Somewhere(), 2, 32)


def test_few_tokens_are_asked_of_our_own_kernels_first(monkeypatch):
    torch.manual_seed(0)
    layer, x = SelfAttention(24, num_heads=3), torch.randn(2, 9, 24)
    want = layer(x)
    monkeypatch.setattr(attention, "own_way", lambda _: True)
    monkeypatch.setattr(attention_cudnn, "serves", lambda *_: pytest.fail("asked"))
    torch.testing.assert_close(layer(x), want)
    monkeypatch.setattr(attention_triton, "serves", lambda *_: True)
    monkeypatch.setattr(attention_triton.Attended, "apply", lambda qkv, _, heads: plain(qkv, heads)[0])
    torch.testing.assert_close(layer(x), want)
