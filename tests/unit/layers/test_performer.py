import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.layers.performer import Performer, orthogonal_features


def layer(dim: int = 12, out_dim: int = 8, **kwargs) -> Performer:
    torch.manual_seed(0)
    return Performer(dim, out_dim, **kwargs).double().eval()


def direct(m: Performer, x: Tensor) -> Tensor:
    """The published formula, one sum at a time."""

    def phi(t: Tensor) -> Tensor:
        dots = torch.einsum("bnd,md->bnm", t, m.w)
        return torch.exp(dots - (t * t).sum(-1, keepdim=True) / 2) / math.sqrt(m.w.shape[0])

    kqv = F.linear(F.layer_norm(x, x.shape[-1:], m.norm1.weight, m.norm1.bias, 1e-5), m.kqv.weight, m.kqv.bias)
    width = m.w.shape[1]
    k, q, v = kqv[..., :width], kqv[..., width : 2 * width], kqv[..., 2 * width :]
    scores = torch.einsum("bim,bjm->bij", phi(q), phi(k))
    y = torch.einsum("bij,bjd->bid", scores, v) / (scores.sum(-1, keepdim=True) + 1e-8)
    out = v + F.linear(y, m.proj.weight, m.proj.bias)
    hidden = F.layer_norm(out, out.shape[-1:], m.norm2.weight, m.norm2.bias, 1e-5)
    return out + m.mlp.fc2(F.gelu(m.mlp.fc1(hidden)))


@pytest.mark.parametrize("tokens", [1, 37])
def test_equals_the_direct_formula_with_gradients(tokens):
    m = layer()
    x = torch.randn(3, tokens, 12, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, tokens, 8, dtype=torch.float64)
    parameters = [x, *m.parameters()]
    fast, slow = m(x), direct(m, x)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-12)
    got = torch.autograd.grad((fast * weights).sum(), parameters)
    want = torch.autograd.grad((slow * weights).sum(), parameters)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-11)


def test_tokens_have_no_order():
    m = layer()
    x = torch.randn(2, 10, 12, dtype=torch.float64)
    order = torch.randperm(10)
    torch.testing.assert_close(m(x[:, order]), m(x)[:, order], rtol=0, atol=1e-13)


def test_nothing_of_size_tokens_squared_is_kept():
    m, tokens = layer(), 400
    kept: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        kept.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        m(torch.randn(1, tokens, 12, dtype=torch.float64))
    assert max(t.numel() for t in kept) <= tokens * 24  # keys, queries and values together


def test_rows_are_orthogonal_and_of_length_root_count():
    w = orthogonal_features(32, 64).double()
    torch.testing.assert_close(w @ w.T, 32 * torch.eye(32, dtype=torch.float64), rtol=0, atol=1e-4)


def test_random_features_are_frozen_saved_and_drawn_from_the_default_generator():
    m = Performer(12)
    assert m.w.shape == (32, 64)
    assert not m.w.requires_grad
    assert "w" in m.state_dict()
    assert not torch.equal(m.w, Performer(12).w)
    torch.manual_seed(7)
    first = Performer(12).w
    torch.manual_seed(7)
    assert torch.equal(first, Performer(12).w)


def test_features_for_which_no_orthogonal_rows_exist_are_refused():
    with pytest.raises(ValueError, match="9 orthogonal features were requested in 8 dimensions; choose 1 to 8"):
        Performer(12, 8, num_features=9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_survives_features_beyond_its_range(dtype):
    m = Performer(12, 64).eval()
    kqv = 4.0 * m.w[:9].repeat(1, 3)[None] / 4.0  # keys and queries on the features: exp(16) is beyond float16
    kqv = kqv.to(dtype)
    assert m.features(kqv.float()[..., :64]).max() > torch.finfo(torch.float16).max
    got = m.to(dtype).attend(kqv)
    assert got.dtype == torch.float32
    want = m.double().attend(kqv.double())
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


def test_autocast_does_not_reach_the_features():
    m = Performer(12, 64).eval()
    kqv = torch.randn(2, 9, 192)
    with torch.autocast("cpu", torch.bfloat16):
        inside = m.attend(kqv)
        out = m(torch.randn(2, 9, 12))
    assert torch.equal(inside, m.attend(kqv))
    assert out.isfinite().all()


def test_tokens_too_long_for_any_feature_give_zero_and_a_finite_gradient():
    m = layer()
    kqv = torch.full((1, 3, 24), 1e3, dtype=torch.float64, requires_grad=True)
    y = m.attend(kqv)
    assert torch.equal(y, torch.zeros_like(y))
    y.sum().backward()
    assert kqv.grad.isfinite().all()


def test_dropout_acts_after_attention_and_after_the_feed_forward_part_in_training_only():
    x = torch.randn(2, 50, 12, dtype=torch.float64)
    m = layer(drop_rate=0.5)
    assert torch.equal(m(x), m(x))
    m.train()
    assert not torch.equal(m(x), m(x))
    with torch.no_grad():
        m.proj.weight.zero_(), m.proj.bias.fill_(1.0), m.mlp.fc2.weight.zero_(), m.mlp.fc2.bias.zero_()
    added = m(x) - m.kqv(m.norm1(x))[..., 16:]
    assert set(added.round(decimals=6).flatten().tolist()) == {0.0, 2.0}
    with torch.no_grad():
        m.proj.bias.zero_(), m.mlp.fc2.bias.fill_(1.0)
    added = m(x) - m.kqv(m.norm1(x))[..., 16:]
    assert set(added.round(decimals=6).flatten().tolist()) == {0.0, 2.0}
    still = layer(drop_rate=0.0)
    assert torch.equal(still(x), still.train()(x))
