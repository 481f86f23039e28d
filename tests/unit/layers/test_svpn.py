import math
import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from saccade.layers.svpn import ApproximateSVPN, ExactSVPN, as_tall, power_singular_values
from saccade.layers.svpn_products import RESOLUTION, STEPS, SquareRootByProducts
from support.golden import normal, part, read, relative_error, tensor

SHAPES = {"sq14": [3, 14, 14], "r12x8": [2, 12, 8], "r7x10": [2, 7, 10]}
METHODS = ["eigen", "products"]


def power(q: Tensor, alpha: float = 0.5, *, method: str = "eigen") -> Tensor:
    """Exact svPN by one of its two ways; products are what an exported graph has."""
    return as_tall(q, SquareRootByProducts.apply) if method == "products" else power_singular_values(q, alpha)


def matrices(name: str) -> Tensor:
    return torch.from_numpy((0.3 * normal(f"svpn/Q/{name}", SHAPES[name])).astype(np.float32)).double()


def golden(kind: str) -> list[tuple[str, str]]:
    pattern = re.compile(rf"svpn\.(\w+)\.({kind}_.*)")
    return [(m[1], m[2]) for m in map(pattern.fullmatch, read("sot_parts")[1]) if m]


def by_svd(q: Tensor, alpha: float = 0.5) -> Tensor:
    """The definition, SoT eq. 5."""
    u, s, vh = torch.linalg.svd(q, full_matrices=False)
    return (u * s.pow(alpha)[..., None, :]) @ vh


def with_condition(number: float, *, batch: int = 32, size: int = 24) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    u, _ = torch.linalg.qr(torch.randn(batch, size, size, generator=generator, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(batch, size, size, generator=generator, dtype=torch.float64))
    return ((u * torch.logspace(0, -math.log10(number), size, dtype=torch.float64)) @ v).float()


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(dtype)


def saved_bytes(call: object, x: Tensor) -> int:
    seen: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        call(x)  # type: ignore[operator]
    return sum(seen.values())


class TestExact:
    @pytest.mark.parametrize(
        ("name", "case", "method"),
        [(n, c, m) for n, c in golden("exact") for m in METHODS if m == "eigen" or c == "exact_a0.5"],
    )
    def test_matches_the_published_matrices(self, name: str, case: str, method: str) -> None:
        got = power(matrices(name), float(case.removeprefix("exact_a")), method=method)
        assert relative_error(got, part("sot_parts", f"svpn.{name}")[1][case]) < 1e-9

    @pytest.mark.parametrize("method", METHODS)
    def test_float32_agrees_with_the_float64_svd_on_random_matrices(self, method: str) -> None:
        q = random(256, 24, 24, dtype=torch.float32)
        want = by_svd(q.double())
        error = (power(q, method=method) - want).abs().amax((1, 2)) / want.abs().amax((1, 2))
        assert error.max() < 1e-6

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("condition", [1e3, 1e5, 1e6])
    def test_float32_agrees_with_the_float64_svd_at_large_condition(self, method: str, condition: float) -> None:
        q = with_condition(condition)
        assert relative_error(power(q, method=method), by_svd(q.double())) < 1e-6

    @pytest.mark.parametrize("method", METHODS)
    def test_float32_gradient_agrees_with_the_float64_svd(self, method: str) -> None:
        q, weight = random(64, 24, 24, dtype=torch.float32).requires_grad_(), random(64, 24, 24)
        exact = q.detach().double().requires_grad_()
        (want,) = torch.autograd.grad(by_svd(exact), exact, weight)
        (got,) = torch.autograd.grad(power(q, method=method), q, weight.float())
        assert relative_error(got, want) < 1e-5

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("shape", [(2, 5, 5), (2, 6, 4), (2, 3, 5), (4, 3)])
    def test_gradient_equals_finite_differences(self, method: str, shape: tuple[int, ...]) -> None:
        q = random(*shape).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: power(x, method=method), (q,))

    @pytest.mark.parametrize("alpha", [0.3, 0.7, 1.0])
    def test_gradient_equals_finite_differences_for_other_exponents(self, alpha: float) -> None:
        assert torch.autograd.gradcheck(lambda x: power(x, alpha), (random(2, 5, 4).requires_grad_(),))

    @pytest.mark.parametrize("method", METHODS)
    def test_gradient_at_equal_singular_values_is_the_analytic_one(self, method: str) -> None:
        # at an orthogonal Q, with E = Q^T G: symmetric part / (1 + 1), skew part * (1 + 1) / (1 + 1)
        q, _ = torch.linalg.qr(random(3, 6, 6))
        weight = random(3, 6, 6)
        inner = q.mT @ weight
        want = q @ ((inner + inner.mT) / 4 + (inner - inner.mT) / 2)
        x = q.clone().requires_grad_()
        (got,) = torch.autograd.grad(power(x, method=method), x, weight)
        assert relative_error(got, want) < 1e-8

    @pytest.mark.parametrize("method", METHODS)
    def test_gradient_at_zero_singular_values_is_finite_and_right_where_defined(self, method: str) -> None:
        x = torch.diag(torch.tensor([1.0, 0.25, 0.0, 0.0], dtype=torch.float64)).requires_grad_()
        (got,) = torch.autograd.grad(power(x, method=method), x, torch.ones(4, 4, dtype=torch.float64))
        root = torch.tensor([1.0, 0.5], dtype=torch.float64)
        assert torch.allclose(got[:2, 2:], (1 / root)[:, None].expand(2, 2))  # 1 / sqrt(s_i) towards a zero value
        assert torch.allclose(got[:2, :2], 1 / (root[:, None] + root))
        limit = 4 * RESOLUTION**-0.5
        assert (got[2:, 2:] > 100).all()
        assert (got[2:, 2:] < limit).all()

    @pytest.mark.parametrize("method", METHODS)
    def test_rank_deficient_float32_matrices_keep_their_null_space(self, method: str) -> None:
        q = (random(8, 24, 5) @ random(8, 5, 24)).float().requires_grad_()
        out = power(q, method=method)
        u, s, vh = torch.linalg.svd(q.detach().double())
        want = (u[..., :5] * s[:, None, :5].sqrt()) @ vh[:, :5]
        assert relative_error(out.detach(), want) < 2e-4  # rounding of q to float32 is worth sqrt(1e-7) there
        assert torch.autograd.grad(out.square().sum(), q)[0].isfinite().all()

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_zero_matrix_stays_zero_with_a_finite_gradient(self, method: str, dtype: torch.dtype) -> None:
        q = torch.zeros(2, 4, 6, dtype=dtype, requires_grad=True)
        out = power(q, method=method)
        assert torch.equal(out, torch.zeros_like(out))
        assert torch.autograd.grad(out.sum(), q)[0].isfinite().all()

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("factor", [1e-3, 1e4])
    def test_scale_of_the_matrix_comes_out_as_its_power(self, method: str, factor: float) -> None:
        q = random(4, 8, 8)
        assert relative_error(power(q * factor, method=method), power(q, method=method) * factor**0.5) < 1e-9

    def test_steps_make_a_square_root_of_every_singular_value_above_the_resolution(self) -> None:
        s = torch.logspace(math.log10(RESOLUTION), 0, 20001, dtype=torch.float64)
        x, f = s, s
        for a, b, c in STEPS:
            h = a + b * x**2 + c * x**4
            x, f = x * h * h, f * h
            assert x.max() < 1.01  # beyond 1 the steep polynomials run away
        assert (f / s.sqrt() - 1).abs().max() < 1e-12

    @pytest.mark.parametrize("method", METHODS)
    def test_keeps_no_more_for_the_backward_pass_than_the_svd(self, method: str) -> None:
        q = random(16, 24, 24, dtype=torch.float32).requires_grad_()
        assert saved_bytes(lambda x: power(x, method=method), q) <= saved_bytes(by_svd, q)

    def test_half_precision_runs_in_float32(self) -> None:
        q = random(3, 5, 5, dtype=torch.bfloat16)
        assert torch.equal(ExactSVPN()(q), ExactSVPN()(q.float()))

    @pytest.mark.parametrize("method", METHODS)
    def test_autocast_does_not_reach_inside(self, method: str) -> None:
        q = random(3, 5, 5, dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = power(q, method=method)
        assert torch.equal(inside, power(q, method=method))

    @pytest.mark.parametrize("method", METHODS)
    def test_compiles_whole(self, method: str) -> None:
        torch._dynamo.reset()
        q = random(3, 4, 5).requires_grad_()
        compiled = torch.compile(lambda x: power(x, method=method), fullgraph=True, backend="aot_eager")
        got, want = compiled(q), power(q, method=method)
        assert torch.allclose(got, want)
        assert torch.allclose(*(torch.autograd.grad(y.square().sum(), q)[0] for y in (got, want)))

    @pytest.mark.parametrize("alpha", [0.0, -0.5, 1.5])
    def test_refuses_other_exponents(self, alpha: float) -> None:
        with pytest.raises(ValueError, match=r"\(0, 1\]"):
            ExactSVPN(alpha)

    def test_an_exported_graph_has_products_for_the_exponent_one_half_alone(self) -> None:
        for alpha, decomposes in ((0.5, False), (0.3, True)):
            program = torch.export.export(ExactSVPN(alpha), (random(2, 5, 4),))
            called = {str(node.target) for node in program.graph.nodes}
            assert any("eigh" in name for name in called) is decomposes
            q = random(2, 5, 4) + 0.1
            assert torch.allclose(program.module()(q), ExactSVPN(alpha)(q))


def power_iteration(q: Tensor, start: Tensor, *, alpha: float, num_sv: int, num_iter: int) -> Tensor:
    """SoT eq. 6 to 8 for one matrix, as published: the same start vector for every value."""
    out, rest = torch.zeros_like(q), q
    for _ in range(num_sv):
        v = start
        for _ in range(num_iter):
            u = rest @ v
            u = u / u.norm()
            v = rest.T @ u
            v = v / v.norm()
        sigma = u @ rest @ v
        out = out + sigma**alpha * torch.outer(u, v)
        rest = rest - sigma * torch.outer(u, v)
    return out + rest / (sigma ** (1 - alpha) + 1e-5)


class TestApproximate:
    @pytest.mark.parametrize(("name", "case"), golden("approx"))
    def test_matches_the_published_matrices(self, name: str, case: str) -> None:
        m = re.fullmatch(r"approx_a([\d.]+)_sv(\w+?)_it(\d)(_initone)?", case)
        assert m
        norm = ApproximateSVPN(
            SHAPES[name][-1],
            alpha=float(m[1]),
            num_sv=None if m[2] == "None" else int(m[2]),
            num_iter=int(m[3]),
            start="ones" if m[4] else "learned",
        ).double()
        if not m[4]:
            norm.start = nn.Parameter(tensor(f"svpn/v0/{SHAPES[name][-1]}", SHAPES[name][-1:]).double())
        assert relative_error(norm(matrices(name)).detach(), part("sot_parts", f"svpn.{name}")[1][case]) < 1e-9

    @pytest.mark.parametrize(("num_sv", "num_iter"), [(1, 1), (1, 3), (2, 2), (3, 3)])
    def test_batch_of_heads_equals_matrix_by_matrix(self, num_sv: int, num_iter: int) -> None:
        norm = ApproximateSVPN(4, alpha=0.4, num_sv=num_sv, num_iter=num_iter).double()
        q, weight = random(2, 3, 5, 4).requires_grad_(), random(2, 3, 5, 4)
        settings = {"alpha": 0.4, "num_sv": num_sv, "num_iter": num_iter}
        want = torch.stack([power_iteration(x, norm.start, **settings) for x in q.reshape(6, 5, 4)]).view_as(q)
        got = norm(q)
        assert torch.allclose(got, want, rtol=1e-10, atol=1e-12)
        for a, b in zip(*(torch.autograd.grad(y, (q, norm.start), weight) for y in (got, want)), strict=True):
            assert relative_error(a, b) < 1e-8

    @pytest.mark.parametrize("start", ["learned", "ones"])
    @pytest.mark.parametrize("num_sv", [2, 3, None])
    def test_several_values_from_one_iteration_are_stable(self, num_sv: int | None, start: str) -> None:
        """The published result moves by a third when the matrix moves by 1e-10."""
        norm = ApproximateSVPN(14, num_sv=num_sv, num_iter=1, start=start).double()
        if start == "learned":
            norm.start = nn.Parameter(tensor("svpn/v0/14", [14]).double())
        q = matrices("sq14")
        out = norm(q).detach()
        assert relative_error(norm(q + 1e-10 * random(3, 14, 14)).detach(), out) < 1e-6
        assert relative_error(norm.float()(q.float()).detach(), out) < 1e-2
        assert out.abs().max() < 20 * power(q).abs().max()

    def test_fresh_starts_leave_the_first_value_alone(self) -> None:
        norm = ApproximateSVPN(6, num_sv=3, num_iter=1)
        assert torch.equal(norm.start_vector(0), norm.start)
        starts = torch.stack([norm.start_vector(i) for i in range(3)])
        assert torch.linalg.matrix_rank(starts) == 3
        again = ApproximateSVPN(6, num_sv=3, num_iter=2)
        assert torch.equal(again.start_vector(1), again.start)

    @pytest.mark.parametrize(("num_sv", "num_iter"), [(1, 1), (1, 5), (3, 1), (3, 3), (None, 2)])
    @pytest.mark.parametrize("rank", [0, 1, 2])
    def test_gradients_are_finite_at_low_rank(self, rank: int, num_sv: int | None, num_iter: int) -> None:
        q = (random(4, 6, rank) @ random(4, rank, 6)).float().requires_grad_()
        norm = ApproximateSVPN(6, num_sv=num_sv, num_iter=num_iter)
        out = norm(q)
        assert out.isfinite().all()
        for grad in torch.autograd.grad(out.square().sum(), (q, norm.start)):
            assert grad.isfinite().all()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_runs_in_float32(self, dtype: torch.dtype) -> None:
        norm = ApproximateSVPN(5).to(dtype)
        q = random(3, 5, 5, dtype=dtype)
        out = norm(q)
        assert out.dtype == torch.float32
        assert torch.allclose(out, norm.float()(q.float()))

    def test_constant_start_is_not_trained(self) -> None:
        assert not list(ApproximateSVPN(4, start="ones").parameters())

    @pytest.mark.parametrize("settings", [{"num_sv": 0}, {"num_iter": 0}])
    def test_refuses_nothing_to_do(self, settings: dict[str, int]) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            ApproximateSVPN(4, **settings)

    def test_refuses_unknown_starts(self) -> None:
        with pytest.raises(ValueError, match="'learned', 'ones'"):
            ApproximateSVPN(4, start="zeros")
