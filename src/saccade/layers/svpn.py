"""Singular value power normalisation (svPN) of a batch of matrices, exact and approximate; SoT eq. 5 to 8."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..ranges import require_choice
from .numerics import full_precision, upcast

Method = Literal["eigen", "products"]


class ExactSVPN(nn.Module):
    """Raise every singular value to the power `alpha`, keep the singular vectors; SoT eq. 5.

    Args:
        alpha: exponent, in (0, 1].
    """

    def __init__(self, alpha: float = 0.5) -> None:
        super().__init__()
        self.alpha = _checked(alpha)

    def forward(self, q: Tensor) -> Tensor:
        """Normalise matrices of shape ..., m, n; the result is at least float32."""
        return power(upcast(q), self.alpha)

    def extra_repr(self) -> str:
        """Show the exponent."""
        return f"alpha={self.alpha}"


class ApproximateSVPN(nn.Module):
    """Power-normalise a few leading singular values and divide the rest by one number; SoT eq. 8.

    Each value comes from power iteration on what is left of the matrix, always from the same start vector. After one
    single step that start vector is mapped to zero by the remainder, so the published result for several values and one
    iteration is rounding noise; here each value after the first then starts from its own vector, the start vector
    modulated by a cosine.

    Args:
        size: columns of the matrices.
        alpha: exponent, in (0, 1].
        num_sv: singular values to estimate; None takes all of them and leaves no remainder.
        num_iter: power iterations a value.
        start: "learned" starts from a normal draw that is trained, "ones" from a constant.
    """

    def __init__(
        self,
        size: int,
        *,
        alpha: float = 0.5,
        num_sv: int | None = 1,
        num_iter: int = 1,
        start: Literal["learned", "ones"] = "learned",
    ) -> None:
        super().__init__()
        require_choice("start", start, ("learned", "ones"))
        if num_iter < 1 or (num_sv is not None and num_sv < 1):
            raise ValueError(f"num_sv={num_sv} and num_iter={num_iter} were asked for; both must be at least 1")
        self.alpha = _checked(alpha)
        self.num_sv = num_sv
        self.num_iter = num_iter
        if start == "learned":
            self.start = nn.Parameter(torch.randn(size))
        else:
            self.register_buffer("start", torch.ones(size), persistent=False)

    def forward(self, q: Tensor) -> Tensor:
        """Normalise matrices of shape ..., m, n; the result is at least float32."""
        rest = upcast(q)
        count = min(q.shape[-2:]) if self.num_sv is None else self.num_sv
        total: Tensor | None = None
        with full_precision(q):
            for index in range(count):
                sigma, outer = self.leading(rest, index)
                scaled = sigma.pow(self.alpha) * outer
                total = scaled if total is None else total + scaled
                rest = rest - sigma * outer
            assert total is not None
            if self.num_sv is None:
                return total
            return total + rest / (sigma.pow(1 - self.alpha) + 1e-5)

    def leading(self, q: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """Estimate the leading singular value of q, ..., 1, 1, and the product of its vectors, ..., m, n."""
        v = self.start_vector(index).to(q.dtype)[:, None]  # n, 1
        for _ in range(self.num_iter):
            u = F.normalize(q @ v, dim=-2)
            v = F.normalize(q.mT @ u, dim=-2)
        sigma = u.mT @ q @ v
        # a power's slope at zero is infinite; below this a value is nothing but rounding
        return sigma.clamp_min(1e-12), u @ v.mT

    def start_vector(self, index: int) -> Tensor:
        """Return the vector that power iteration for value `index` starts from."""
        start = cast(Tensor, self.start)
        if index == 0 or self.num_iter > 1:
            return start
        place = torch.arange(start.shape[0], dtype=torch.float64, device=start.device) + 0.5
        return start * torch.cos(place * (math.pi * index / start.shape[0])).to(start.dtype)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"alpha={self.alpha}, num_sv={self.num_sv}, num_iter={self.num_iter}"


def power(q: Tensor, alpha: float = 0.5, *, method: Method | None = None) -> Tensor:
    """Return U diag(s**alpha) V^T for matrices U diag(s) V^T, with a gradient that is finite everywhere.

    The gradient exists at equal singular values. At zero the slope of a power is infinite; singular values below about
    2e-7 of the largest, which are rounding, bend into a straight line through zero instead.

    Args:
        q: matrices, ..., m, n.
        alpha: exponent, in (0, 1].
        method: "eigen" decomposes the smaller Gram matrix in float64 and takes any exponent; "products" iterates with
            matrix products only, for the exponent 1/2. By default "products" in an export, else "eigen".
    """
    method = _checked_method(method, _checked(alpha))
    with full_precision(q):
        x = q.mT if q.shape[-2] < q.shape[-1] else q
        flat = x if x.dim() == 3 else x.flatten(0, -3) if x.dim() > 3 else x[None]  # B, m, n with m >= n
        flat = _ByEigen.apply(flat, alpha) if method == "eigen" else _ByProducts.apply(flat)
        out = flat if x.dim() == 3 else flat.reshape(x.shape)
        return out.mT if q.shape[-2] < q.shape[-1] else out


def _checked_method(method: Method | None, alpha: float) -> Method:
    if method is None:
        return "products" if torch.compiler.is_exporting() and alpha == 0.5 else "eigen"
    if method not in ("eigen", "products"):
        raise ValueError(f"method={method!r} was asked for; allowed are 'eigen', 'products' and None")
    if method == "products" and alpha != 0.5:
        raise ValueError(f"alpha={alpha} was asked of method {method!r}, which takes 0.5 only; use method='eigen'")
    return method


RESOLUTION = 2e-7  # singular values below this share of the largest are rounding
SMALLEST = 1e-6  # matrices smaller than this are not scaled up further, which bounds the slope at zero


def _scale(gram: Tensor) -> Tensor:
    """Return a bound of the largest singular value from the Gram matrix, B, 1, 1; at most n**(1/4) too large."""
    return torch.linalg.matrix_norm(gram, keepdim=True).sqrt().clamp_min(SMALLEST)


class _ByEigen(torch.autograd.Function):
    """Q f(Q^T Q) with f(x) = (x + e)**((alpha - 1) / 2), through the eigenvectors of Q^T Q.

    The backward pass uses divided differences of f (Daleckii and Krein), which are finite at equal eigenvalues.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, alpha: float) -> Tensor:
        ctx.exponent = (alpha - 1) / 2

        def work(q: Tensor) -> tuple[Tensor, ...]:
            x = q.double()
            gram = x.mT @ x
            values, vectors = torch.linalg.eigh(gram)
            # a smooth bend needs to lie lower than a sharp one to leave the same values alone
            values = values.clamp_min(0) + (0.1 * RESOLUTION * _scale(gram)[..., 0]) ** 2
            turned = x @ vectors  # columns s_i u_i, in float64 since small ones are about to be enlarged
            turned, axes = turned.to(q.dtype), vectors.mT.to(q.dtype)
            return (turned * values.pow(ctx.exponent).to(q.dtype)[..., None, :]) @ axes, turned, axes, values

        out, *kept = _spread(work, q)
        ctx.save_for_backward(*kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        def work(grad: Tensor, turned: Tensor, axes: Tensor, values: Tensor) -> tuple[Tensor, ...]:
            right = grad @ axes.mT.contiguous()  # some BLAS are twenty times slower with the transpose
            inner = _divided(values, ctx.exponent, grad.dtype) * (turned.mT @ right)
            right = right * values.pow(ctx.exponent).to(grad.dtype)[..., None, :]
            return (torch.baddbmm(right, turned, inner + inner.mT) @ axes,)

        return _spread(work, grad, *ctx.saved_tensors)[0], None


def _divided(x: Tensor, exponent: float, dtype: torch.dtype) -> Tensor:
    """Return (f(x_i) - f(x_j)) / (x_i - x_j) for f(x) = x**exponent, and f' where they are almost equal; B, n, n."""
    if exponent == -0.25:  # alpha = 1/2: the difference divides out
        root = x.pow(0.25).to(dtype)
        row, column = root[..., None], root[..., None, :]
        return -1 / ((row + column) * (row.square() + column.square()) * row * column)
    y, slope = x.pow(exponent), x.pow(exponent / 2 - 0.5)
    gap = x[..., None] - x[..., None, :]
    near = gap.abs() < 1e-5 * x[..., None]
    quotient = (y[..., None] - y[..., None, :]) / torch.where(near, 1, gap)
    return torch.where(near, exponent * slope[..., None] * slope[..., None, :], quotient).to(dtype)


def _spread(work: Callable[..., tuple[Tensor, ...]], *batches: Tensor) -> tuple[Tensor, ...]:
    """Do the work on as many threads as PyTorch may use: it runs small matrices of a batch one after another."""
    if torch.compiler.is_compiling() or not batches[0].is_cpu:
        return work(*batches)
    count = min(torch.get_num_threads(), batches[0].shape[0] // 64)
    if count < 2:
        return work(*batches)

    def quiet(*parts: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():  # the mode belongs to a thread
            return work(*parts)

    with ThreadPoolExecutor(count) as pool:
        results = list(pool.map(quiet, *(batch.chunk(count) for batch in batches)))
    return tuple(torch.cat(parts) for parts in zip(*results, strict=True))


# Steps x <- x h(x^2)^2 with h(t) = a + b t + c t^2, f <- f h(x^2), from f = x = s. Each h is the best approximation
# that brings x nearer to 1 on [l, 1], where l is what the steps before it have made of RESOLUTION; the largest x is
# kept at 0.98 because the steep polynomials must not see values beyond 1. At the end x = 1, so f = sqrt(s).
STEPS = (
    (2.4536, -8.0189, 6.5553),
    (2.4530, -8.0098, 6.5467),
    (2.4516, -7.9874, 6.5258),
    (2.4480, -7.9327, 6.4746),
    (2.4394, -7.7992, 6.3498),
    (2.4181, -7.4768, 6.0487),
    (2.3645, -6.7159, 5.3414),
    (2.2267, -5.0456, 3.8088),
    (1.8931, -2.3565, 1.4533),
    (1.5054, -0.78179, 0.27697),
    (45 / 32, -18 / 32, 5 / 32),
    (45 / 32, -18 / 32, 5 / 32),
)


class _ByProducts(torch.autograd.Function):
    """The steps on whole matrices, in float64.

    An odd function of singular values has a self-adjoint derivative, so the backward pass is the derivative of the
    same steps in the direction of the incoming gradient: dual numbers, value and slope side by side.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor) -> Tensor:
        ctx.save_for_backward(q)
        x = q.double()
        gram = x.mT @ x
        scale = _scale(gram)
        x = f = x / scale
        gram = gram / scale**2
        steps = STEPS if q.dtype == torch.float64 else STEPS[:-1]  # the last one brings the error from 3e-9 to 1e-15
        for index, (a, b, c) in enumerate(steps):
            h = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
            f_next = torch.baddbmm(f, f, h, beta=a)
            if index + 1 < len(steps):
                x = f_next if index == 0 else torch.baddbmm(x, x, h, beta=a)
                x = torch.baddbmm(x, x, h, beta=a)
                gram = x.mT @ x
            f = f_next
        out = f * scale.sqrt()
        return out if out.dtype == q.dtype else out.to(q.dtype)  # torch 2.11 loses the gradient by an idle conversion

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (q,) = ctx.saved_tensors
        n = q.shape[-1]
        x = q.double()
        scale = _scale(x.mT @ x)
        x = f = torch.cat([x / scale, grad.double()], dim=-1)  # value | slope
        for index, (a, b, c) in enumerate(STEPS):  # all: an error that oscillates is large in the slope
            gram = _dual(x[..., :n].mT, x[..., n:].mT, x)
            h = _dual(gram[..., :n], gram[..., n:], gram, gram, beta=b, alpha=c)
            f_next = _dual(f[..., :n], f[..., n:], h, f, beta=a)
            if index + 1 < len(STEPS):
                x = f_next if index == 0 else _dual(x[..., :n], x[..., n:], h, x, beta=a)
                x = _dual(x[..., :n], x[..., n:], h, x, beta=a)
            f = f_next
        return (f[..., n:] / scale.sqrt()).to(grad.dtype)


def _dual(
    value: Tensor, slope: Tensor, right: Tensor, add: Tensor | None = None, *, beta: float = 1.0, alpha: float = 1.0
) -> Tensor:
    """Multiply dual numbers: alpha (value, slope) @ right + beta add, where right and add are value | slope."""
    n = right.shape[-1] // 2
    out = value @ right if add is None else torch.baddbmm(add, value, right, beta=beta, alpha=alpha)
    out[..., n:].baddbmm_(slope, right[..., :n], alpha=alpha)
    return out


def _checked(alpha: float) -> float:
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha={alpha} was asked for; singular values take exponents in (0, 1]")
    return alpha
