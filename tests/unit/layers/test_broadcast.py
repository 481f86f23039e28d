import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.layers.broadcast import Broadcast, token_mean


def uniform_attention(x: Tensor) -> Tensor:
    """Attention of B, N, C tokens whose weights are all 1 / N, with the N x N matrix spelled out."""
    weights = torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype).softmax(-1)
    return torch.einsum("ij,bjc->bic", weights, x)


def to_layout(x: Tensor, layout: str, grid: tuple[int, int] = (3, 4)) -> Tensor:
    """Tokens B, N, C in another layout."""
    if layout == "NLC":
        return x
    x = x.unflatten(1, grid)
    return x if layout == "NHWC" else x.permute(0, 3, 1, 2)


every_layout = pytest.mark.parametrize("layout", ["NLC", "NHWC", "NCHW"])


@every_layout
def test_equals_half_of_uniform_attention(layout):
    x = torch.randn(2, 12, 5, dtype=torch.float64)
    want = to_layout((x + uniform_attention(x)) / 2, layout)
    torch.testing.assert_close(Broadcast(layout=layout)(to_layout(x, layout)), want, rtol=0, atol=1e-15)


@every_layout
def test_scaled_form_adds_each_channel_by_its_own_weight(layout):
    x = torch.randn(2, 12, 5, dtype=torch.float64)
    m = Broadcast(5, scale=True, layout=layout).double()
    assert torch.equal(m(to_layout(x, layout)), to_layout(x, layout))  # zero at first: the host starts unchanged
    with torch.no_grad():
        m.scale.copy_(torch.arange(5.0))
    want = to_layout(x + torch.arange(5.0).double() * uniform_attention(x), layout)
    torch.testing.assert_close(m(to_layout(x, layout)), want, rtol=0, atol=1e-14)


def test_scale_is_learned_from_zero_on():
    m, x = Broadcast(5, scale=True), torch.randn(2, 12, 5)
    m(x).sum().backward()
    torch.testing.assert_close(m.scale.grad, 12 * x.mean(1).sum(0))
    assert not list(Broadcast(5).parameters())


@every_layout
def test_tokens_outside_the_mask_neither_count_nor_change(layout):
    x = torch.randn(3, 12, 5, dtype=torch.float64)
    lengths = (12, 7, 0)
    mask = torch.arange(12) < torch.tensor(lengths)[:, None]
    m = Broadcast(layout=layout)
    shaped = mask if layout == "NLC" else mask.unflatten(1, (3, 4))
    got = m(to_layout(x, layout), shaped)
    want = x.clone()
    for row, length in enumerate(lengths[:2]):
        want[row, :length] = Broadcast()(x[row : row + 1, :length])[0]
    torch.testing.assert_close(got, to_layout(want, layout), rtol=0, atol=1e-15)


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 1e30])
def test_what_padding_holds_does_not_matter(junk):
    x = torch.randn(1, 6, 4)
    mask = torch.tensor([[True] * 4 + [False] * 2])
    want = Broadcast()(x, mask)[:, :4]
    x[:, 4:] = junk
    x.requires_grad_()
    got = Broadcast()(x, mask)[:, :4]
    assert torch.equal(got, want)
    got.sum().backward()
    assert x.grad.isfinite().all()
    assert not x.grad[:, 4:].any()


def test_skipped_tokens_at_the_front_neither_count_nor_change():
    x = torch.randn(2, 9, 4)
    got = Broadcast(skip=2)(x)
    assert torch.equal(got[:, :2], x[:, :2])
    assert torch.equal(got[:, 2:], Broadcast()(x[:, 2:]))
    mask = torch.arange(9).expand(2, 9) < 6
    assert torch.equal(Broadcast(skip=2)(x, mask)[:, 2:6], Broadcast()(x[:, 2:6]))


def test_causal_mean_runs_over_a_token_and_those_before_it():
    x = torch.randn(2, 7, 3, dtype=torch.float64)
    got = Broadcast(causal=True)(x)
    for last in range(7):
        want = (x[:, last] + x[:, : last + 1].mean(1)) / 2
        torch.testing.assert_close(got[:, last], want, rtol=0, atol=1e-15)
    changed = x.clone()
    changed[:, 4:] += 1
    assert torch.equal(Broadcast(causal=True)(changed)[:, :4], got[:, :4])


def test_causal_mean_of_a_map_is_refused():
    with pytest.raises(ValueError, match="a causal mean needs a sequence"):
        Broadcast(causal=True, layout="NHWC")(torch.randn(1, 2, 2, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_half_precision_sums_in_float32(dtype, masked):
    x = (1000 + torch.randn(1, 4096, 3)).to(dtype)  # the sum is beyond float16, and beyond bfloat16's digits
    mask = torch.ones(1, 4096, 1, dtype=torch.bool) if masked else None
    got = token_mean(x, mask)
    assert got.dtype == dtype
    want = x.double().mean(1, keepdim=True).to(dtype)
    assert torch.equal(got, want)


def test_large_float16_tokens_do_not_overflow():
    x = torch.full((1, 3, 2), 60000.0, dtype=torch.float16)
    assert torch.equal(Broadcast()(x), x)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="layout='BHWC' was given; allowed are"):
        Broadcast(layout="BHWC")
    with pytest.raises(ValueError, match="give dim"):
        Broadcast(scale=True)


def test_gradient_is_the_same_mixture():
    """Uniform attention is its own transpose."""
    x = torch.randn(1, 6, 4, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(1, 6, 4, dtype=torch.float64)
    (got,) = torch.autograd.grad((Broadcast()(x) * weights).sum(), x)
    torch.testing.assert_close(got, Broadcast()(weights), rtol=0, atol=1e-15)
    assert F.mse_loss(got, weights) > 0
