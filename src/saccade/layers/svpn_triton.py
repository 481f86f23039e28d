"""svPN with the exponent 1/2, one GPU kernel each way: a Jacobi SVD with a warp for each matrix, in Triton."""

from __future__ import annotations  # `tl` is not there yet when the kernels are defined

import functools
import importlib.util
import os
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .triton_language import triton_for

INSTALLED = importlib.util.find_spec("triton") is not None
LARGEST = 32  # rows and columns: the columns are the lanes of one warp
SWEEPS = 15  # at most; random matrices take seven, a condition of 1e6 nine
PRECISION = "tf32x3"  # of products of whole matrices: on tensor cores, three of TF32 make one of almost float32
WARPS = 2  # of the backward kernel
tl: Any = None  # triton.language, from the first use of a kernel on


def fits(q: Tensor) -> bool:
    """Say whether the kernels take the matrices, ..., m, n."""
    return INSTALLED and q.dtype == torch.float32 and max(q.shape[-2:]) <= LARGEST and q.numel() > 0


def runs(device: torch.device) -> bool:
    """Say whether the kernels run on the device: a GPU, or any where Triton interprets them."""
    if device.type != "cuda":
        return INSTALLED and os.environ.get("TRITON_INTERPRET") == "1"
    return torch.compiler.is_compiling() or _compiles(device)


@functools.cache
def _compiles(device: torch.device) -> bool:
    try:
        _decomposition(torch.eye(2, device=device)[None], 1e-7, 1e-6)
    except Exception as error:  # an old GPU, no C compiler: Triton has no common class for what can be missing
        warnings.warn(f"Triton cannot compile for {device}, so exact svPN takes a slower way: {error}", stacklevel=2)
        return False
    return True


class Fused(torch.autograd.Function):
    """U diag(s**0.5) V^T and its gradient.

    Args:
        q: matrices B, m, n with 32 >= m >= n, float32.
        resolution: share of the largest singular value below which the root bends into a straight line.
        smallest: matrices of smaller singular values than this bend as if they had one of that size.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, resolution: float, smallest: float) -> Tensor:
        """Take the root of the singular values."""
        ctx.bend = resolution, smallest
        call = decomposition if _traced(q) else _decomposition
        out, kept = call(q, resolution, smallest)
        ctx.save_for_backward(kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient towards the matrices."""
        call = gradient if _traced(grad) else _gradient
        return call(grad, *ctx.saved_tensors, *ctx.bend), None, None


def _traced(x: Tensor) -> bool:
    """Say whether a tracer needs to see an operator; the kernel alone starts sooner."""
    return torch.compiler.is_compiling() or type(x) is not Tensor


# The kernels run for a tenth of a millisecond, so that starting them counts: whatever is no tensor is compiled in.


def _decomposition(q: Tensor, resolution: float, smallest: float) -> tuple[Tensor, Tensor]:
    batch, m, n = q.shape
    out, kept = _results(q)
    rows = 16 if m + n <= 48 else 32
    with torch.cuda.device_of(q):
        _kernels()[0][(batch,)](
            q.contiguous(), out, kept, m, n, rows, SWEEPS, resolution, smallest, PRECISION, num_warps=1
        )
    return out, kept


def _results(q: Tensor, *_: float) -> tuple[Tensor, Tensor]:
    """Make room for the result, and for U diag(s) / scale over V over a row of the scale."""
    batch, m, n = q.shape
    return q.new_empty(batch, m, n), q.new_empty(batch, m + n + 1, n)


def _gradient(grad: Tensor, kept: Tensor, resolution: float, smallest: float) -> Tensor:
    batch, m, n = grad.shape
    out = grad.new_empty(batch, m, n)
    with torch.cuda.device_of(grad):
        _kernels()[1][(batch,)](grad.contiguous(), kept, out, m, n, resolution, smallest, PRECISION, num_warps=WARPS)
    return out


_bend = "float resolution, float smallest"
decomposition = torch.library.custom_op(
    "saccade::svpn_decomposition",
    _decomposition,
    mutates_args=(),
    schema=f"(Tensor q, {_bend}) -> (Tensor, Tensor)",
)
decomposition.register_fake(_results)
gradient = torch.library.custom_op(
    "saccade::svpn_gradient",
    _gradient,
    mutates_args=(),
    schema=f"(Tensor grad, Tensor kept, {_bend}) -> Tensor",
)
gradient.register_fake(lambda grad, *_: grad.new_empty(grad.shape))


@functools.cache
def _kernels() -> tuple[Any, Any]:
    triton = triton_for(globals())
    return triton.jit(_decompose), triton.jit(_differentiate)


def _decompose(
    q: tl.tensor,
    out: tl.tensor,
    kept: tl.tensor,
    m: tl.constexpr,
    n: tl.constexpr,
    tail_rows: tl.constexpr,
    sweeps: tl.constexpr,
    resolution: tl.constexpr,
    smallest: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """One-sided Jacobi: rotate pairs of columns of Q over I until those of Q are orthogonal, Q V = U diag(s).

    Lane j holds column j: inner products stay inside a lane, and a rotation is a shuffle with the partner's lane.
    """
    matrix = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, 32)[:, None]
    low = tl.arange(0, tail_rows)[:, None] + 32
    lane = tl.arange(0, 32)
    column = lane[None, :]
    x = tl.load(q + matrix * (m * n) + row * n + column, mask=(row < m) & (column < n), other=0.0)
    size = tl.maximum(tl.max(tl.max(tl.abs(x), axis=0), axis=0), 1e-12)
    # Q over I, in two tiles: rows 0 to 31 and the rest
    head = tl.where((row - m == column) & (column < n), 1.0, x / size)
    tail = tl.where((low - m == column) & (column < n), 1.0, 0.0)

    players: tl.constexpr = n + n % 2
    rounds: tl.constexpr = players - 1
    sweep = 0
    left = tl.full([], 1.0, tl.float32)
    while (sweep < sweeps) & (left > 3e-6):
        found = tl.zeros([32], tl.float32)
        widest = tl.zeros([32], tl.float32)
        for turn in range(rounds):
            # a round robin: all pairs meet once a sweep, and the last player is the one who would meet himself
            partner = (turn + rounds - lane % rounds) % rounds
            partner = tl.where(partner == lane, players - 1, partner)
            partner = tl.where(lane == players - 1, (turn * (players // 2)) % rounds, partner)
            partner = tl.where(lane < players, partner, lane)
            head_other = tl.gather(head, tl.broadcast_to(partner[None, :], [32, 32]), axis=1)
            tail_other = tl.gather(tail, tl.broadcast_to(partner[None, :], [tail_rows, 32]), axis=1)
            mine = tl.sum(tl.where(row < m, head * head, 0.0), axis=0)
            inner = tl.sum(tl.where(row < m, head * head_other, 0.0), axis=0)
            other = tl.gather(mine, partner, axis=0)
            between = tl.abs(inner) * tl.rsqrt(tl.maximum(mine * other, 1e-36))  # cosine
            # the tangent of the smaller angle; both lanes of a pair find the same one with opposite signs
            first = lane < partner
            ratio = tl.abs((other - mine) / (2 * inner))
            tangent = tl.where(between > 5e-7, 1 / (ratio + tl.sqrt(1 + ratio * ratio)), 0.0)
            found = tl.maximum(found, between)
            widest = tl.maximum(widest, tangent)
            cosine = 1 / tl.sqrt(1 + tangent * tangent)
            sine = tangent * cosine
            miss = tl.fma(-sine, sine, tl.fma(-cosine, cosine, 1.0))  # hundreds of rotations must not change lengths
            cosine = tl.fma(cosine, 0.5 * miss, cosine)
            sine = tl.fma(sine, 0.5 * miss, sine)
            positive = ((other > mine) | ((other == mine) & first)) == (inner >= 0)
            # sorting: the longer column goes to the lower lane, which saves sweeps where lengths differ much; columns
            # of almost one length stay, since two that change places can miss a meeting
            sorted_ = (first & (1.001 * mine >= other)) | ((lane >= partner) & (1.001 * other >= mine))
            keep = tl.where(sorted_, cosine, sine)
            take = tl.where(sorted_, -sine, cosine)
            take = tl.where(positive, take, -take)
            head = keep[None, :] * head + take[None, :] * head_other
            tail = keep[None, :] * tail + take[None, :] * tail_other
        left = tl.max(found, axis=0) * tl.max(widest, axis=0)  # a rotation brings this much back into a settled pair
        sweep += 1

    kept += matrix * ((m + n + 1) * n)
    tl.store(kept + row * n + column, head, mask=(row < m + n) & (column < n))
    tl.store(kept + low * n + column, tail, mask=(low < m + n) & (column < n))
    tl.store(kept + (m + n) * n + lane, size + tl.zeros([32], tl.float32), mask=lane < n)
    tl.debug_barrier()  # V comes back transposed
    v = tl.load(kept + (m + column) * n + row, mask=(row < n) & (column < n), other=0.0)
    turned = tl.where(row < m, head, 0.0)
    square = tl.sum(turned * turned, axis=0)
    bend = 0.1 * resolution * tl.maximum(tl.sqrt(tl.sqrt(tl.sum(square * square, axis=0))), smallest / size)
    factor = tl.sqrt(size / tl.sqrt(square + bend * bend))
    result = tl.dot(turned * factor[None, :], v, input_precision=precision)
    tl.store(out + matrix * (m * n) + row * n + column, result, mask=(row < m) & (column < n))


def _differentiate(
    grad: tl.tensor,
    kept: tl.tensor,
    out: tl.tensor,
    m: tl.constexpr,
    n: tl.constexpr,
    resolution: tl.constexpr,
    smallest: tl.constexpr,
    precision: tl.constexpr,
) -> None:
    """Divided differences of x**(-1/4) at the squared singular values, as for any function of Q^T Q."""
    matrix = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, 32)[:, None]
    column = tl.arange(0, 32)[None, :]
    inside = (row < m) & (column < n)
    square_inside = (row < n) & (column < n)
    g = tl.load(grad + matrix * (m * n) + row * n + column, mask=inside, other=0.0)
    kept += matrix * ((m + n + 1) * n)
    turned = tl.load(kept + row * n + column, mask=inside, other=0.0)
    v = tl.load(kept + (m + row) * n + column, mask=square_inside, other=0.0)
    size = tl.load(kept + (m + n) * n)
    square = tl.sum(turned * turned, axis=0)
    bend = 0.1 * resolution * tl.maximum(tl.sqrt(tl.sqrt(tl.sum(square * square, axis=0))), smallest / size)
    value = tl.sqrt(square + bend * bend)
    root = tl.sqrt(value)
    pairs = (root[:, None] + root[None, :]) * (value[:, None] + value[None, :]) * root[:, None] * root[None, :]
    right = tl.dot(g, v, input_precision=precision)
    inner = -tl.dot(tl.trans(turned), right, input_precision=precision) / pairs
    inner = inner + tl.trans(inner)
    total = right / root[None, :] + tl.dot(turned, inner, input_precision=precision)
    result = tl.dot(total, tl.trans(v), input_precision=precision) / tl.sqrt(size)
    tl.store(out + matrix * (m * n) + row * n + column, result, mask=inside)
