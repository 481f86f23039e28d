import math
import os
import shutil
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from saccade.layers import native, svpn_native
from saccade.layers.svpn import RESOLUTION, SMALLEST, ExactSVPN, _divided, power
from support.golden import relative_error

COMPILER = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
needs_compiler = pytest.mark.skipif(
    COMPILER is None or os.name != "posix", reason="needs a C compiler on a POSIX system"
)


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        svpn_native._library.cache_clear()
        yield
    svpn_native._library.cache_clear()


@pytest.fixture
def _forgotten() -> Iterator[None]:
    """Nothing has been compiled in this process yet, and nothing is remembered after the test."""
    svpn_native._library.cache_clear()
    yield
    svpn_native._library.cache_clear()


def random(*shape: int, seed: int = 7) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_svd(q: Tensor, alpha: float = 0.5) -> Tensor:
    u, s, vh = torch.linalg.svd(q.double(), full_matrices=False)
    return (u * s.pow(alpha)[..., None, :]) @ vh


def with_values(values: Tensor, *, batch: int = 5) -> Tensor:
    size = len(values)
    u, _ = torch.linalg.qr(random(batch, size, size).double())
    v, _ = torch.linalg.qr(random(batch, size, size, seed=8).double())
    return ((u * values.double()) @ v).float()


def exact(q: Tensor, weight: Tensor, alpha: float = 0.5) -> tuple[Tensor, Tensor]:
    """Result and gradient from an SVD in float64, bent at zero as documented; a Gram matrix would lose small values."""
    u, s, vh = torch.linalg.svd(q.double(), full_matrices=False)
    scale = s.pow(4).sum(-1, keepdim=True).pow(0.25).clamp_min(SMALLEST)
    x, exponent = s.square() + (0.1 * RESOLUTION * scale).square(), (alpha - 1) / 2
    turned, factor = u * s[..., None, :], x.pow(exponent)[..., None, :]
    right = weight.double() @ vh.mT
    inner = _divided(x, exponent, torch.float64) * (turned.mT @ right)
    return (turned * factor) @ vh, (right * factor + turned @ (inner + inner.mT)) @ vh


def differentiated(q: Tensor, weight: Tensor, *, method: str = "compiled", alpha: float = 0.5) -> tuple[Tensor, Tensor]:
    """The result, and the gradient of its inner product with `weight`; all but "compiled" in float64."""
    x = (q if method == "compiled" else q.double()).detach().requires_grad_()
    out = power(x, alpha, method=method)
    return out.detach(), torch.autograd.grad(out, x, weight.to(out.dtype))[0]


@needs_compiler
class TestCompiled:
    @pytest.mark.parametrize(
        "shape",
        [(64, 24, 24), (3, 32, 32), (2, 64, 64), (3, 12, 8), (2, 3, 7, 10), (9, 5), (5, 1, 3), (4, 4, 1), (3, 1, 1)]
        + [(3, size, size) for size in range(2, 12)],
    )
    def test_agrees_with_float64(self, shape: tuple[int, ...]) -> None:
        q, weight = random(*shape), random(*shape, seed=8)
        (out, grad), (want, want_grad) = differentiated(q, weight), differentiated(q, weight, method="eigen")
        assert relative_error(out, by_svd(q)) < 1e-6
        assert relative_error(out, want) < 1e-6
        assert relative_error(grad, want_grad) < 1e-5

    @pytest.mark.parametrize("alpha", [0.3, 0.7, 1.0])
    def test_takes_other_exponents(self, alpha: float) -> None:
        q, weight = random(6, 9, 7), random(6, 9, 7, seed=8)
        (out, grad), (want, want_grad) = (
            differentiated(q, weight, method=method, alpha=alpha) for method in ("compiled", "eigen")
        )
        assert relative_error(out, by_svd(q, alpha)) < 1e-6
        assert relative_error(out, want) < 1e-6
        assert relative_error(grad, want_grad) < 1e-5

    @pytest.mark.parametrize("condition", [1e2, 1e4, 1e6])
    def test_agrees_with_float64_at_large_condition(self, condition: float) -> None:
        q, weight = with_values(torch.logspace(0, -math.log10(condition), 24)), random(5, 24, 24)
        (out, grad), (want, want_grad) = differentiated(q, weight), differentiated(q, weight, method="eigen")
        assert relative_error(out, by_svd(q)) < 1e-6
        assert relative_error(out, want) < 1e-6
        assert relative_error(grad, want_grad) < 1e-5

    def test_gradient_equals_finite_differences_of_the_svd(self) -> None:
        q, weight = random(3, 6, 5), random(3, 6, 5, seed=8)
        step = 1e-6 * random(3, 6, 5, seed=9).double()
        want = ((by_svd(q + step) - by_svd(q - step)) * weight).sum() / 2
        assert relative_error((differentiated(q, weight)[1] * step).sum(), want) < 1e-5

    @pytest.mark.parametrize("values", [[1.0] * 6, [1.0, 1.0, 0.5, 0.5, 0.5, 0.1], [1.0] * 12 + [1e-3] * 12])
    def test_agrees_with_float64_where_singular_values_repeat(self, values: list[float]) -> None:
        q = with_values(torch.tensor(values))
        weight = random(*q.shape)
        (out, grad), (want, want_grad) = differentiated(q, weight), differentiated(q, weight, method="eigen")
        assert relative_error(out, want) < 1e-6
        assert relative_error(grad, want_grad) < 1e-5

    @pytest.mark.parametrize("q", [torch.eye(6), torch.eye(5).flip(0), torch.ones(4, 4), torch.ones(7, 3)])
    @pytest.mark.parametrize("alpha", [0.5, 0.3])
    def test_special_matrices_agree_with_float64(self, q: Tensor, alpha: float) -> None:
        weight = random(*q.shape)
        (out, grad), (want, want_grad) = differentiated(q, weight, alpha=alpha), exact(q, weight, alpha)
        assert relative_error(out, want) < 1e-6
        assert relative_error(grad, want_grad) < 1e-5

    def test_zero_singular_values_have_the_gradient_of_the_other_methods(self) -> None:
        q, weight = torch.diag(torch.tensor([1.0, 0.25, 0.0, 0.0])), torch.ones(4, 4)
        (out, grad), (_, want_grad) = differentiated(q, weight), differentiated(q, weight, method="eigen")
        assert torch.allclose(out, q.sqrt(), atol=1e-6)
        assert torch.allclose(grad.double(), want_grad, rtol=1e-3)

    @pytest.mark.parametrize("rank", [1, 5, 20])
    def test_low_rank_is_resolved_as_by_float64(self, rank: int) -> None:
        q, weight = random(8, 24, rank) @ random(8, rank, 24, seed=8), random(8, 24, 24, seed=9)
        (out, grad), (want, want_grad) = differentiated(q, weight), exact(q, weight)
        assert relative_error(out, want) < 1e-6
        assert relative_error(grad, want_grad) < 2e-4  # roundings to float32 meet slopes of 1e3

    def test_zero_columns_and_rows_keep_their_place(self) -> None:
        q = random(6, 24, 24)
        q[:3, :, ::3] = 0
        q[3:, 5:9] = 0
        (out, grad), (want, _) = differentiated(q, random(6, 24, 24, seed=8)), exact(q, q)
        assert relative_error(out, want) < 1e-6
        assert (out[:3, :, ::3] == 0).all()
        assert (out[3:, 5:9] == 0).all()
        assert grad.isfinite().all()

    def test_zero_matrix_stays_zero_with_a_finite_gradient(self) -> None:
        out, grad = differentiated(torch.zeros(3, 4, 6), torch.ones(3, 4, 6))
        assert torch.equal(out, torch.zeros_like(out))
        assert grad.isfinite().all()
        assert relative_error(grad, differentiated(torch.zeros(3, 4, 6), torch.ones(3, 4, 6), method="eigen")[1]) < 1e-5

    @pytest.mark.parametrize("factor", [1e-42, 1e-30, 1e-10, 1e-3, 1e4, 1e30, 1e37])
    def test_scale_of_the_matrix_comes_out_as_its_power(self, factor: float) -> None:
        q, weight = random(3, 8, 8) * factor, random(3, 8, 8, seed=8)
        (out, grad), (want, want_grad) = differentiated(q, weight), exact(q, weight)
        assert relative_error(out, want) < 1e-6
        assert relative_error(grad, want_grad) < 1e-5

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_what_is_not_finite_spoils_its_own_matrix_only(self, bad: float) -> None:
        q = random(9, 6, 6)
        q[4, 2, 3] = bad
        (out, grad), (want, want_grad) = (differentiated(x, random(9, 6, 6, seed=8)) for x in (q, random(9, 6, 6)))
        good = torch.arange(9) != 4
        assert out[4].isnan().all()
        assert grad[4].isnan().all()
        assert torch.equal(out[good], want[good])
        assert torch.equal(grad[good], want_grad[good])

    def test_result_depends_on_no_other_matrix_and_on_no_thread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mixed = [random(40, 9, 9), with_values(torch.logspace(0, -7, 9), batch=20), torch.eye(9).expand(5, 9, 9)]
        q = torch.cat([*mixed * 3, torch.zeros(3, 9, 9)])
        q, weight = q[torch.randperm(len(q), generator=torch.Generator().manual_seed(0))], random(len(q), 9, 9)
        want = differentiated(q, weight)
        alone = [differentiated(q[i : i + 1], weight[i : i + 1]) for i in range(len(q))]
        for got, whole in zip(zip(*alone, strict=True), want, strict=True):
            assert torch.equal(torch.cat(got), whole)
        for threads in (1, 2, 5):
            monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            assert all(map(torch.equal, differentiated(q, weight), want))

    def test_strides_change_nothing(self) -> None:
        q = random(5, 2, 6)
        views = [q.permute(1, 0, 2), q[:, :, ::2].transpose(0, 1), q[:, :1].expand(5, 2, 6).transpose(0, 1)]
        for view in views:
            x = view.detach().requires_grad_()
            out = power(x, method="compiled")
            copy = view.clone(memory_format=torch.contiguous_format)
            assert torch.equal(out, power(copy, method="compiled"))
            (grad,) = torch.autograd.grad(out, x, torch.ones(()).expand_as(out))
            assert torch.equal(grad, differentiated(copy, torch.ones_like(copy))[1])

    def test_keeps_no_more_for_the_backward_pass_than_the_svd(self) -> None:
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.nbytes) or x, lambda x: x):
            power(random(16, 24, 24).requires_grad_(), method="compiled")
        assert sum(kept) <= 16 * 4 * (2 * 24 * 24 + 2 * 25)


@needs_compiler
class TestChoice:
    def test_is_the_default_for_many_matrices_it_takes(self) -> None:
        q = random(16, 6, 6)
        assert torch.equal(ExactSVPN()(q), power(q, method="compiled"))
        assert torch.equal(power(q[:15]), power(q[:15], method="eigen"))
        assert torch.equal(power(random(16, 65, 2)), power(random(16, 65, 2), method="eigen"))
        assert torch.equal(power(q.double()), power(q.double(), method="eigen"))

    def test_tracers_see_operators_instead(self) -> None:
        torch._dynamo.reset()
        q = random(16, 4, 5).requires_grad_()
        compiled = torch.compile(power, fullgraph=True, backend="aot_eager")
        (got, want) = ((y, torch.autograd.grad(y.square().sum(), q)[0]) for y in (compiled(q), power(q)))
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(got, want, strict=True))
        other = random(16, 4, 5, seed=8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(lambda x: power(x), q.detach())
        assert torch.allclose(traced(other), power(other), rtol=1e-4, atol=1e-5)

    def test_recorded_operators_give_the_result_of_new_matrices(self) -> None:
        q, other = random(16, 4, 4), random(16, 4, 4, seed=8)
        graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: power(x))(q)
        assert torch.allclose(graph(other), power(other), rtol=1e-4, atol=1e-5)

    def test_export_takes_products(self) -> None:
        class Root(torch.nn.Module):
            def forward(self, q: Tensor) -> Tensor:
                return power(q)

        q = random(16, 4, 4)
        assert torch.allclose(torch.export.export(Root(), (q,)).module()(q), power(q), rtol=1e-4, atol=1e-5)

    def test_empty_batches_pass(self) -> None:
        assert power(torch.zeros(0, 4, 4)).shape == (0, 4, 4)

    @pytest.mark.parametrize("q", [random(2, 4, 4).double(), random(2, 65, 4)])
    def test_refuses_what_the_code_does_not_take(self, q: Tensor) -> None:
        with pytest.raises(ValueError, match="float32 of at most 64 rows and columns"):
            power(q, method="compiled")


@pytest.mark.usefixtures("_forgotten")
class TestCompiling:
    def falls_back(self, reason: str) -> None:
        q = random(32, 4, 4)
        with pytest.warns(UserWarning, match=reason):
            got = power(q)
        assert torch.equal(got, power(q, method="eigen"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            power(q)
        with pytest.raises(ValueError, match="needs a C compiler"):
            power(q, method="compiled")

    def test_goes_without_a_compiler_and_says_so_once(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        self.falls_back("no C compiler was found")

    @pytest.mark.parametrize(
        ("given", "reason"), [("/nowhere/cc", "No such file"), ("false", "failed with status 1"), ("'", "quotation")]
    )
    def test_goes_without_a_compiler_that_fails(self, given: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CC", given)
        self.falls_back(reason)

    @needs_compiler
    def test_goes_without_a_folder_to_write_to(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv(
            "XDG_CACHE_HOME", str(tmp_path / "file")
        )  # root may write to any folder, but not into a file
        self.falls_back("Not a directory")

    @needs_compiler
    def test_refuses_a_folder_that_others_can_write_to(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "saccade").mkdir()
        (tmp_path / "saccade").chmod(0o777)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        self.falls_back("writable by you alone")

    @needs_compiler
    def test_refuses_a_library_of_somebody_else(self, monkeypatch: pytest.MonkeyPatch) -> None:
        own = os.getuid()
        native.built(svpn_native.SOURCE)
        monkeypatch.setattr(os, "getuid", lambda: own + 1)
        self.falls_back(f"belongs to user {own}")

    @needs_compiler
    def test_folder_is_private_and_holds_the_library_alone(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "deep" / "cache"))
        usual = os.umask(0)
        try:
            built = native.built(svpn_native.SOURCE)
        finally:
            os.umask(usual)
        assert list(built.parent.iterdir()) == [built]
        assert stat.S_IMODE(built.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(built.stat().st_mode) == 0o700
        made = built.stat().st_mtime_ns
        assert native.built(svpn_native.SOURCE).stat().st_mtime_ns == made

    @needs_compiler
    def test_other_source_gets_another_library(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-O1"))
        first = native.built(svpn_native.SOURCE)
        source = tmp_path / "svpn_native.c"
        source.write_text(svpn_native.SOURCE.read_text() + "\n/* another */\n")
        assert native.built(source) != first

    @needs_compiler
    def test_several_threads_may_compile_it_at_once(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(native, "FLAGS", ("-O0", "-shared", "-fPIC"))
        with ThreadPoolExecutor(3) as pool:
            built = set(pool.map(lambda _: native.built(svpn_native.SOURCE), range(3)))
        assert list((tmp_path / "saccade").iterdir()) == list(built)

    @pytest.mark.slow
    @needs_compiler
    def test_several_processes_may_need_it_first(self, tmp_path: Path) -> None:
        code = (
            "import torch; from saccade.layers.svpn import power; "
            "print(float(power(4 * torch.eye(3).expand(16, 3, 3), method='compiled').sum()))"
        )
        env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}

        def start(_: int) -> subprocess.CompletedProcess[str]:
            return subprocess.run([sys.executable, "-W", "error", "-c", code], env=env, capture_output=True, text=True)

        with ThreadPoolExecutor(3) as pool:
            for done in pool.map(start, range(3)):
                assert done.returncode == 0, done.stderr
                assert float(done.stdout) == pytest.approx(96)
        assert len(list((tmp_path / "saccade").iterdir())) == 1

    @pytest.mark.slow
    def test_nothing_is_compiled_on_import(self, tmp_path: Path) -> None:
        env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CC": "/nowhere/cc"}
        code = "import torch; from saccade.layers.svpn import power; power(torch.eye(3)[None])"
        subprocess.run([sys.executable, "-W", "error", "-c", code], env=env, check=True)
        assert not list(tmp_path.iterdir())
