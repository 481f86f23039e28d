"""Singular value power normalisation (svPN) of matrices Q, exact (SoT eq. 5) and approximate (SoT eq. 6 to 8)."""

import math
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..settings.values import require_choice
from .numerics import full_precision, upcast
from .svpn_products import RESOLUTION, SquareRootByProducts, bound_of_largest


class ExactSVPN(nn.Module):
    """Raise every singular value to the power `alpha`, keep the singular vectors; SoT eq. 5.

    Args:
        alpha: exponent, above 0 and at most 1 (eq. 5: below 1; 1 changes nothing).
    """

    def __init__(self, alpha: float = 0.5) -> None:
        super().__init__()
        self.alpha = _checked(alpha)

    def forward(self, q: Tensor) -> Tensor:
        """Normalise matrices of shape ..., m, n; the result is at least float32."""
        return power_singular_values(upcast(q), self.alpha)

    def extra_repr(self) -> str:
        """Show the exponent."""
        return f"alpha={self.alpha}"


class ApproximateSVPN(nn.Module):
    """Power-normalise r - 1 leading singular values and divide the rest by lambda_r^(1 - alpha); SoT eq. 6 to 8.

    Power iteration for each lambda_k runs on Q' (eq. 7) from v^(0). After one iteration Q' v^(0) = 0, so with
    num_iter=1 the further values of the published code are rounding noise; there, and only there, v^(0) is multiplied
    by a cosine of its own for each k > 1 (see `start_vector`).

    Args:
        size: columns of the matrices.
        alpha: exponent, above 0 and at most 1 (eq. 5: below 1).
        num_sv: r, singular values to estimate; None takes all of them and leaves no remainder.
        num_iter: power iterations a value.
        start: v^(0), which the paper leaves open: "learned", a trained normal draw, or "ones".
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
            raise ValueError(f"num_sv={num_sv} and num_iter={num_iter} were given; both must be at least 1")
        self.alpha = _checked(alpha)
        self.num_sv = num_sv
        self.num_iter = num_iter
        if start == "learned":
            self.start = nn.Parameter(torch.randn(size))
        else:
            self.register_buffer("start", torch.ones(size), persistent=False)

    def forward(self, q: Tensor) -> Tensor:
        """Normalise matrices of shape ..., m, n; the result is at least float32."""
        rest = upcast(q)  # Q' of eq. 7
        r = min(q.shape[-2:]) if self.num_sv is None else self.num_sv
        total: Tensor | None = None
        with full_precision(q):
            for k in range(r):  # counts from 0, the paper from 1
                sigma, outer = self.leading(rest, k)  # lambda_k, u_k v_k^T
                scaled = sigma.pow(self.alpha) * outer
                total = scaled if total is None else total + scaled
                rest = rest - sigma * outer  # eq. 7
            assert total is not None
            if self.num_sv is None:
                return total
            # Eq. 8 sums r - 1 terms and divides what these leave. Here the r-th is summed as well and the remainder has
            # lost it, which is equal: lambda_r^alpha u v^T = lambda_r u v^T / lambda_r^(1 - alpha).
            # The 1e-5 is the published code's; it keeps the division finite where a matrix has no r-th singular value.
            return total + rest / (sigma.pow(1 - self.alpha) + 1e-5)

    def leading(self, q: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Estimate the leading singular value of q, ..., 1, 1, and the product u v^T of its vectors, ..., m, n."""
        v = self.start_vector(k).to(q.dtype)[:, None]  # n, 1
        for _ in range(self.num_iter):  # eq. 6
            u = F.normalize(q @ v, dim=-2)
            v = F.normalize(q.mT @ u, dim=-2)
        sigma = u.mT @ q @ v  # = ||Q^T u||, the paper's lambda, as v is Q^T u at unit length
        # a power's slope at zero is infinite; below this a value is nothing but rounding
        return sigma.clamp_min(1e-12), u @ v.mT

    def start_vector(self, k: int) -> Tensor:
        """Return the vector v^(0) that power iteration for value k, counted from 0, starts from."""
        start = cast(Tensor, self.start)
        if k == 0 or self.num_iter > 1:
            return start
        place = torch.arange(start.shape[0], dtype=torch.float64, device=start.device) + 0.5
        return start * torch.cos(place * (math.pi * k / start.shape[0])).to(start.dtype)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"alpha={self.alpha}, num_sv={self.num_sv}, num_iter={self.num_iter}"


def power_singular_values(q: Tensor, alpha: float = 0.5) -> Tensor:
    """Return U diag(s**alpha) V^T for matrices Q = U diag(s) V^T, with a gradient that is finite everywhere.

    The gradient exists at equal singular values, where corollary 1 of SoT sets its term to zero. At zero the slope of a
    power is infinite; singular values below about 2e-7 of the largest, which are rounding, bend into a straight line
    through zero instead.

    Args:
        q: matrices, ..., m, n.
        alpha: exponent, above 0 and at most 1 (eq. 5: below 1; 1 changes nothing).
    """
    _checked(alpha)
    if torch.compiler.is_exporting() and alpha == 0.5:  # ONNX has no eigendecomposition
        return as_tall(q, SquareRootByProducts.apply)
    return as_tall(q, lambda x: PowerByEigenvectors.apply(x, alpha))


def as_tall(q: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function of batches B, m, n with m >= n, which commutes with transposing, to matrices ..., m, n."""
    with full_precision(q):
        x = q.mT if q.shape[-2] < q.shape[-1] else q
        flat = x if x.dim() == 3 else x.flatten(0, -3) if x.dim() > 3 else x[None]
        out = function(flat)
        out = out if x.dim() == 3 else out.reshape(x.shape)
        return out.mT if q.shape[-2] < q.shape[-1] else out


class PowerByEigenvectors(torch.autograd.Function):
    """Q f(Q^T Q) with f(x) = (x + e)**((alpha - 1) / 2), through the eigenvectors of Q^T Q, in float64.

    The backward pass uses divided differences of f (Daleckii and Krein), which are finite at equal eigenvalues.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, alpha: float) -> Tensor:
        """Return matrices of the shape of q, B, m, n with m >= n."""
        ctx.exponent = (alpha - 1) / 2
        x = q.double()
        gram = x.mT @ x
        values, vectors = torch.linalg.eigh(gram)  # the singular values, squared
        # a smooth bend needs to lie lower than a sharp one to leave the same values alone
        values = values.clamp_min(0) + (0.1 * RESOLUTION * bound_of_largest(gram)[..., 0]) ** 2
        turned = x @ vectors  # columns s_i u_i, in float64 since small ones are about to be enlarged
        turned, axes = turned.to(q.dtype), vectors.mT.to(q.dtype)
        ctx.save_for_backward(turned, axes, values)
        return (turned * values.pow(ctx.exponent).to(q.dtype)[..., None, :]) @ axes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient towards q."""
        turned, axes, values = ctx.saved_tensors
        right = grad @ axes.mT.contiguous()  # some BLAS are twenty times slower with the transpose
        inner = divided_differences(values, ctx.exponent, grad.dtype) * (turned.mT @ right)
        right = right * values.pow(ctx.exponent).to(grad.dtype)[..., None, :]
        return torch.baddbmm(right, turned, inner + inner.mT) @ axes, None


def divided_differences(x: Tensor, exponent: float, dtype: torch.dtype) -> Tensor:
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


def _checked(alpha: float) -> float:
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha={alpha} was given; the exponent of singular values must be in (0, 1]")
    return alpha
