import pytest
import torch
from torch import Tensor

from saccade.layers.covpool import Average, Covariance, CrossCovariance, covariance
from saccade.layers.matrix_norms import SquareRoot
from support.golden import part, relative_error, tensor


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def padded(x: Tensor, value: float = 1e4) -> tuple[Tensor, Tensor]:
    """Append four tokens that must not count, and the mask that says so."""
    batch, count, dim = x.shape
    longer = torch.cat([x, torch.full((batch, 4, dim), value, dtype=x.dtype)], dim=1)
    return longer, torch.arange(count + 4).expand(batch, -1) < count


class TestCovariance:
    @pytest.fixture
    def tokens(self) -> tuple[Tensor, Tensor]:
        q = tensor("sot_parts/cov/q", [3, 20, 6]).double() + torch.arange(6)
        k = tensor("sot_parts/cov/k", [3, 20, 5]).double() - 0.5 * torch.arange(5)
        return q, k

    def test_matches_the_published_cross_covariance(self, tokens: tuple[Tensor, Tensor]) -> None:
        _, want = part("sot_parts", "cov")
        assert relative_error(covariance(*tokens), want["cross_official"]) < 1e-12
        assert relative_error(covariance(*tokens, centring=None), want["cross_no_mean_removal"]) < 1e-12

    def test_matches_the_published_self_covariance(self, tokens: tuple[Tensor, Tensor]) -> None:
        q, _ = tokens
        assert relative_error(covariance(q, q, divisor=6), part("sot_parts", "cov")[1]["self_official"]) < 1e-12

    def test_channel_centring_makes_it_a_covariance(self, tokens: tuple[Tensor, Tensor]) -> None:
        q, _ = tokens
        want = torch.stack([torch.cov(x.T, correction=0) for x in q])
        assert torch.allclose(covariance(q, q, centring="channel"), want)

    @pytest.mark.parametrize("centring", ["scalar", "channel", None])
    def test_masked_tokens_do_not_count(self, tokens: tuple[Tensor, Tensor], centring: str | None) -> None:
        q, k = tokens
        long_q, mask = padded(q, float("inf"))
        long_k, _ = padded(k, float("nan"))
        got = covariance(long_q, long_k, mask=mask, centring=centring)
        assert torch.allclose(got, covariance(q, k, centring=centring))

    def test_sample_without_tokens_is_zero(self, tokens: tuple[Tensor, Tensor]) -> None:
        mask = torch.zeros(3, 20, dtype=torch.bool)
        assert torch.equal(covariance(*tokens, mask=mask), torch.zeros(3, 6, 5, dtype=torch.float64))


def mgcrp(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    """SoT eq. 2 and 3 with the exact svPN, head by head; x is one sample, N, C."""
    heads = []
    for wi, ri in zip(w, r, strict=True):
        u, s, vh = torch.linalg.svd((wi @ x.T) @ (ri @ x.T).T / len(x))
        heads.append(((u * s.sqrt()) @ vh).flatten())
    return torch.cat(heads)


class TestCrossCovariance:
    def test_equals_the_papers_equations_head_by_head(self) -> None:
        pool = CrossCovariance(8, num_heads=3, head_dim=4, centring=None, normalization="svpn_exact").double()
        x = random(2, 11, 8)
        w, r = pool.proj.weight.view(2, 3, 4, 8).unbind(0)
        want = torch.stack([mgcrp(sample, w, r) for sample in x])
        got = pool(x)
        assert torch.allclose(got, want, atol=1e-9)
        weight = random(2, 48)
        a, b = (torch.autograd.grad(y, pool.proj.weight, weight)[0] for y in (got, want))
        assert relative_error(a, b) < 1e-7

    def test_token_order_does_not_matter(self) -> None:
        pool = CrossCovariance(8, num_heads=2, head_dim=3).double()
        x = random(2, 9, 8)
        assert torch.allclose(pool(x), pool(x.flip(1)))

    def test_scalar_centring_ignores_a_shift_of_all_channels(self) -> None:
        pool = CrossCovariance(6, num_heads=2, head_dim=3).double()
        q = pool.proj(random(2, 9, 6)).detach()
        assert torch.allclose(covariance(q[..., :6], q[..., 6:]), covariance(q[..., :6] + 5, q[..., 6:] - 2))

    @pytest.mark.parametrize("normalization", ["svpn", "svpn_exact", "sqrt_d", "sqrt_t", "epn", "layer_norm", None])
    def test_masked_tokens_do_not_count(self, normalization: str | None) -> None:
        pool = CrossCovariance(8, num_heads=2, head_dim=3, normalization=normalization).double()
        x = random(2, 9, 8)
        longer, mask = padded(x)
        assert torch.allclose(pool(longer, mask), pool(x))

    @pytest.mark.parametrize("normalization", ["svpn", "svpn_exact", "epn", "layer_norm", "sqrt_t"])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_neither_overflows_nor_changes_type(self, dtype: torch.dtype, normalization: str) -> None:
        pool = CrossCovariance(8, num_heads=2, head_dim=3, normalization=normalization).to(dtype)
        x = (300 * random(2, 50, 8)).to(dtype).requires_grad_()
        out = pool(x)
        assert out.dtype == dtype
        assert out.isfinite().all()
        assert torch.autograd.grad(out.float().sum(), x)[0].isfinite().all()

    def test_dropout_acts_in_training_only(self) -> None:
        pool = CrossCovariance(8, num_heads=2, head_dim=4, drop_rate=0.5)
        x = random(2, 9, 8).float()
        assert (pool.train()(x) == 0).any()
        assert (pool.eval()(x) != 0).all()

    @pytest.mark.parametrize("settings", [{"normalization": "pca"}, {"centring": "median"}, {"epn_axis": "row"}])
    def test_refuses_unknown_settings(self, settings: dict[str, str]) -> None:
        if "epn_axis" in settings:
            settings = {**settings, "normalization": "epn"}
        with pytest.raises(ValueError, match="allowed are"):
            CrossCovariance(8, **settings)


class TestSelfCovariance:
    def test_width_is_that_of_the_published_models(self) -> None:
        pool = Covariance(256)
        assert pool.proj.out_features == 48
        assert pool.width == 1176

    def test_upper_triangle_row_by_row(self) -> None:
        a = tensor("sot_parts/mpn/A", [3, 8, 12]).double()
        pool = Covariance(8, num_heads=2, head_dim=4)
        rooted = SquareRoot(3)(a @ a.mT / 12)
        got = rooted.flatten(1).index_select(1, pool.triangle)
        assert relative_error(got, part("sot_parts", "mpn")[1]["module_it3_triu"]) < 1e-12

    def test_divisor_scales_the_covariance(self) -> None:
        x = random(2, 9, 8)
        pools = [Covariance(8, head_dim=3, divisor=d, normalization=None).double() for d in ("channels", "tokens")]
        pools[1].load_state_dict(pools[0].state_dict())
        width = pools[0].proj.out_features
        assert torch.allclose(pools[0](x) * width, pools[1](x) * 9)

    @pytest.mark.parametrize("alpha", [0.3, 0.5])
    def test_exact_power_equals_that_of_the_eigenvalues(self, alpha: float) -> None:
        pool = Covariance(8, num_heads=1, head_dim=3, normalization="power", alpha=alpha, divisor="tokens").double()
        x = random(2, 9, 8)
        projected = pool.proj(x)
        values, vectors = torch.linalg.eigh(covariance(projected, projected))
        want = (vectors * values[:, None].pow(alpha)) @ vectors.mT
        row, column = torch.triu_indices(4, 4)
        assert torch.allclose(pool(x), want[:, row, column])

    def test_iteration_approaches_the_exact_power(self) -> None:
        x = random(2, 30, 8)
        exact = Covariance(8, num_heads=1, head_dim=3, normalization="power").double()
        errors = []
        for num_iter in (1, 3, 12):
            pool = Covariance(8, num_heads=1, head_dim=3, num_iter=num_iter).double()
            pool.load_state_dict(exact.state_dict())
            errors.append(relative_error(pool(x).detach(), exact(x).detach()))
        assert errors[0] > errors[1] > errors[2]
        assert errors[2] < 1e-6

    def test_masked_tokens_do_not_count(self) -> None:
        pool = Covariance(8, num_heads=1, head_dim=3, divisor="tokens").double()
        x = random(2, 9, 8)
        assert torch.allclose(pool(*padded(x)), pool(x))

    def test_refuses_unknown_settings(self) -> None:
        with pytest.raises(ValueError, match="'channels' and 'tokens'"):
            Covariance(8, divisor="pixels")
        with pytest.raises(ValueError, match="allowed are"):
            Covariance(8, normalization="svpn")


def test_average_of_masked_tokens_is_that_of_the_others() -> None:
    x = random(2, 9, 8)
    assert torch.allclose(Average(8)(*padded(x)), x.mean(1))
