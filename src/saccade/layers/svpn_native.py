"""svPN on the CPU in compiled code: `svpn_native.c`, which the user's C compiler translates when it is first needed."""

import ctypes
import functools
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import native
from .switch import on

SOURCE = Path(__file__).with_suffix(".c")
LARGEST = 64  # rows and columns: more do not stay in the cache next to the core


class Compiled(torch.autograd.Function):
    """U diag(s**alpha) V^T and its gradient.

    A result depends on its own matrix alone, not on the others in the batch nor on the number of threads.

    Args:
        q: matrices B, m, n with LARGEST >= m >= n, float32, of any strides.
        alpha: exponent, in (0, 1].
        resolution: share of the largest singular value below which the power bends into a straight line.
        smallest: matrices of smaller singular values than this bend as if they had one of that size.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, alpha: float, resolution: float, smallest: float) -> Tensor:
        """Take the power of the singular values."""
        ctx.exponent = (alpha - 1) / 2
        q = q.contiguous()
        batch, m, n = q.shape
        out, turned, axes = torch.empty_like(q), torch.empty_like(q), q.new_empty(batch, n, n)
        values = q.new_empty(batch, n + 1, dtype=torch.float64)
        bend = ctx.exponent, 0.1 * resolution, smallest
        _spread(_loaded().svpn_forward, (q, out, turned, axes, values), m, n, *bend)
        ctx.save_for_backward(turned, axes, values)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient towards the matrices."""
        grad = grad.contiguous()
        out = torch.empty_like(grad)
        _spread(_loaded().svpn_backward, (grad, *ctx.saved_tensors, out), *grad.shape[1:], ctx.exponent)
        return out, None, None, None


def fits(q: Tensor) -> bool:
    """Say whether the code takes the matrices, ..., m, n: it needs their memory, which a tracer does not have."""
    return on("svpn") and native.fits(q) and q.numel() > 0 and max(q.shape[-2:]) <= LARGEST


def runs() -> bool:
    """Say whether the code is there; the first call compiles it and warns if that fails."""
    return _library() is not None


def _spread(work: Callable[..., int], batches: tuple[Tensor, ...], *settings: float) -> None:
    """Do the work on as many threads as PyTorch may use; a call to C leaves the interpreter to the others."""
    count = batches[0].shape[0]
    threads = max(1, min(torch.get_num_threads(), count // 32))  # to wake one costs as much as a few matrices
    step = -(-count // (2 * threads)) if threads > 1 else count  # several pieces each, in case one thread is held up

    def call(start: int) -> int:
        parts = [batch[start : start + step] for batch in batches]
        return work(*(part.data_ptr() for part in parts), parts[0].shape[0], *settings)

    if call(0) if threads == 1 else sum(_pool(os.getpid(), threads).map(call, range(0, count, step))):
        raise MemoryError(f"no memory for the decomposition of {count} matrices; take a smaller batch")


@functools.lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:  # noqa: ARG001
    """Return threads to work on; those of a parent are not there after a fork."""
    return ThreadPoolExecutor(threads)


def _loaded() -> ctypes.CDLL:
    library = _library()
    if library is None:
        raise OSError("svPN could not be compiled, see the warning before; use method='eigen'")
    return library


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(native.built(SOURCE)))
    except native.FAILURES as error:
        warnings.warn(f"exact svPN cannot be compiled and takes a slower way on the CPU: {error}", stacklevel=2)
        return None
    address, whole, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_double
    library.svpn_forward.argtypes = [address] * 5 + [ctypes.c_int64, whole, whole] + [real] * 3
    library.svpn_backward.argtypes = [address] * 5 + [ctypes.c_int64, whole, whole, real]
    return library
