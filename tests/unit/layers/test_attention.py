import pytest
import timm
import torch
from timm.layers import Attention
from torch import nn

from saccade.layers import attention as module
from saccade.layers.attention import SelfAttention
from saccade.training.engine import compile_parts


def made(**options):
    torch.manual_seed(0)
    return Attention(32, num_heads=4, qkv_bias=True, **options).double()


def both(attention, x):
    """Return the answer and all gradients."""
    x = x.clone().requires_grad_()
    y = attention(x)
    (y * torch.linspace(-1, 1, y.numel()).double().view_as(y)).sum().backward()
    found = [y, x.grad, *(p.grad.clone() for p in attention.parameters())]
    attention.zero_grad()
    return found


@pytest.mark.parametrize("options", [{}, {"qk_norm": True, "norm_layer": nn.LayerNorm}])
@pytest.mark.parametrize("tokens", [1, 16, 49, 65])
def test_products_give_what_the_fused_kernel_gives(monkeypatch, tokens, options):
    attention = made(**options)
    x = torch.randn(3, tokens, 32, dtype=torch.float64)
    expected = both(attention, x)
    SelfAttention.inside(attention)
    assert type(attention) is SelfAttention
    called = []
    monkeypatch.setattr(module, "own_way", lambda x: called.append(x.shape) or True)
    for one, other in zip(both(attention, x), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    assert called == [x.shape]


def test_masks_and_dropped_weights_are_left_to_timm(monkeypatch):
    monkeypatch.setattr(module, "own_way", lambda _: True)
    monkeypatch.setattr(module, "attend_by_products", lambda *_: pytest.fail("by products"))
    x, mask = torch.randn(2, 9, 32, dtype=torch.float64), torch.randn(2, 4, 9, 9, dtype=torch.float64)
    plain = made()
    expected = plain(x, attn_mask=mask)
    SelfAttention.inside(plain)
    assert torch.equal(plain(x, attn_mask=mask), expected)
    dropping = made(attn_drop=0.5)
    SelfAttention.inside(dropping)
    dropping(x)


def test_tokens_go_our_way_in_compiled_training_on_a_gpu(monkeypatch):
    class Somewhere:
        def __init__(self, cuda=True):
            self.is_cuda = cuda

    assert not module.own_way(Somewhere())
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert module.own_way(Somewhere())
    assert not module.own_way(Somewhere(cuda=False))
    with torch.no_grad():
        assert not module.own_way(Somewhere())


def test_a_compiled_vit_of_timm_has_it_and_answers_the_same(monkeypatch):
    torch.manual_seed(0)
    model = timm.create_model("test_vit", img_size=32, patch_size=8, num_classes=3).double()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    expected = model(x)
    compile_parts(model, backend="eager")
    assert type(model.blocks[0].attn) is SelfAttention
    served = []
    monkeypatch.setattr(module, "own_way", lambda x: served.append(x.shape[1]) or True)
    torch.testing.assert_close(model(x), expected, rtol=1e-10, atol=1e-12)
    assert set(served) == {17}
