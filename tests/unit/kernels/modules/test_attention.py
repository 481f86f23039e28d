import pytest
import torch
from timm.layers import Attention
from torch import nn

from saccade.kernels.modules import attention as module
from saccade.kernels.modules.attention import FusedAttention
from saccade.kernels.ops import attention as operators
from support.kernels import by_references, swap


def made(**options):
    torch.manual_seed(0)
    return Attention(24, num_heads=3, qkv_bias=True, **options).double()


def passed(layer, x):
    x = x.clone().requires_grad_()
    y = layer(x)
    slope = torch.linspace(-1, 1, y.numel()).double().view_as(y)
    return [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], slope)]


@pytest.fixture
def trained(monkeypatch):
    monkeypatch.setattr(module, "trains_on_gpu", lambda _: True)


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize("options", [{}, {"qk_norm": True, "norm_layer": nn.LayerNorm}])
@pytest.mark.parametrize("tokens", [1, 16, 49, 65, 100])
@pytest.mark.parametrize("kernel", [False, True])
def test_kernel_and_products_have_the_plain_gradients(monkeypatch, tokens, options, kernel):
    attention, x = made(**options), torch.randn(2, tokens, 24, dtype=torch.float64)
    want = passed(attention, x)
    called = by_references(monkeypatch)
    monkeypatch.setattr(module, "serves", lambda *_: kernel)
    swap(attention, "attention")
    assert type(attention) is FusedAttention
    torch.testing.assert_close(passed(attention, x), want, rtol=1e-10, atol=1e-12)
    assert called["attend"] == called["attend_back"] == (kernel and not options)


@pytest.mark.usefixtures("trained")
def test_masks_gates_and_dropped_weights_are_left_to_timm(monkeypatch):
    monkeypatch.setattr(FusedAttention, "fused", lambda *_: pytest.fail("by products"))
    monkeypatch.setattr(module, "serves", lambda *_: False)
    x, mask = torch.randn(2, 9, 24, dtype=torch.float64), torch.randn(2, 3, 9, 9, dtype=torch.float64)
    attention = made()
    expected = attention(x, attn_mask=mask)
    swap(attention, "attention")
    assert torch.equal(attention(x, attn_mask=mask), expected)
    attention.attn_drop.p = 0.5  # turned on later
    attention(x)
    assert FusedAttention.refuses(made(attn_drop=0.5)) == "it uses attention dropout"
    assert FusedAttention.refuses(made()) is None


def test_a_kernel_serves_few_tokens_of_narrow_heads_in_half_precision(monkeypatch):
    class Somewhere:
        is_cuda = True

        def __init__(self, tokens, width, dtype=torch.bfloat16):
            self.shape, self.dtype = (2, tokens, 2 * width), dtype

    monkeypatch.setattr(operators, "INSTALLED", True)
    monkeypatch.setattr(operators, "shared_memory", lambda _: 101_376)
    assert not operators.serves(Somewhere(64, 32), 32)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert operators.serves(Somewhere(64, 32), 32)
    assert operators.serves(Somewhere(128, 64), 64)
    assert not operators.serves(Somewhere(129, 32), 32)
    assert not operators.serves(Somewhere(64, 96), 96)
    assert not operators.serves(Somewhere(64, 32, torch.float32), 32)
    monkeypatch.setattr(operators, "shared_memory", lambda _: 65_536)
    assert not operators.serves(Somewhere(64, 32), 32)
    monkeypatch.setattr(operators, "shared_memory", lambda _: 232_448)
    assert operators.serves(Somewhere(64, 32), 32)
    monkeypatch.setattr(operators, "INSTALLED", False)
    assert not operators.serves(Somewhere(64, 32), 32)
