"""Exact svPN with the exponent 1/2 by matrix products alone, for exported graphs: ONNX has no eigendecomposition."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

RESOLUTION = 2e-7  # singular values below this share of the largest are rounding
MIN_NORM = 1e-6  # matrices smaller than this are not scaled up further, which bounds the slope at zero

# Steps x <- x h(x^2)^2, f <- f h(x^2) with h(t) = a + b t + c t^2, from f = x = s. They keep f^2 / x = s, so that
# f = sqrt(s) when x = 1. Each h is the best approximation that brings x nearer to 1 on [l, 1], where l is what the
# steps before it have made of RESOLUTION; the largest x is kept at 0.98, since the steep polynomials must not see
# values beyond 1. The last two are Taylor's polynomial of t^(-1/4) about 1, which x h(x^2)^2 = 1 asks for.
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


def bound_of_largest(gram: Tensor) -> Tensor:
    """Return a bound of the largest singular value from Q^T Q, B, 1, 1; at most n**(1/4) too large."""
    return torch.linalg.matrix_norm(gram, keepdim=True).sqrt().clamp_min(MIN_NORM)


class SquareRootByProducts(torch.autograd.Function):
    """The steps on whole matrices, in float64.

    An odd function of singular values has a self-adjoint derivative, so the backward pass is the derivative of the
    same steps in the direction of the incoming gradient: dual numbers, value and slope side by side.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor) -> Tensor:
        """Return U diag(sqrt(s)) V^T for matrices B, m, n with m >= n."""
        ctx.save_for_backward(q)
        x = q.double()
        gram = x.mT @ x
        scale = bound_of_largest(gram)
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
        """Return the gradient towards q."""
        (q,) = ctx.saved_tensors
        n = q.shape[-1]
        x = q.double()
        scale = bound_of_largest(x.mT @ x)
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
