"""Guards for half precision: where a formula needs range or digits, it runs in float32."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

AUTOCAST = ("cpu", "cuda", "xpu", "mps", "hpu")  # devices that have it; torch 2.11 cannot trace the question


def upcast(x: Tensor) -> Tensor:
    """Return `x` in float32 if it is half precision, else as it is (float64 stays float64)."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def unit(x: Tensor, eps: float = 1e-12) -> Tensor:
    """Scale the last axis to unit length in at least float32, with zero vectors left at zero."""
    x = upcast(x)
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(eps)


def full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Switch autocast off where it is on: it would run the matrix products inside in half precision."""
    return torch.autocast(x.device.type, enabled=False) if _autocasts(x) else nullcontext()


def _autocasts(x: Tensor) -> bool:
    device = x.device.type
    return device in AUTOCAST and torch.is_autocast_enabled(device)


def line_of(norm: Any, read: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return what a batch norm does to every channel in evaluation: times the first, plus the second.

    Args:
        norm: one with running statistics.
        read: gives a tensor the precision that is computed in.
    """
    scale = (read(norm.running_var) + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * read(norm.weight)
    shift = -read(norm.running_mean) * scale
    return scale, shift if norm.bias is None else shift + read(norm.bias)
