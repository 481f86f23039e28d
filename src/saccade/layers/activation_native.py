"""GELU on the CPU, and its slope in the same pass if asked for, by `activation_native.c`."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from . import native

GELU = native.Function(Path(__file__).with_suffix(".c"), "gelu", (*[ctypes.c_void_p] * 4, ctypes.c_int64))
LEAST = 4096  # numbers that are worth it


def serves(x: Tensor) -> bool:
    """Tell whether the code takes a tensor: one that lies in one piece."""
    return native.fits(x) and x.numel() >= LEAST and _dense(x) and GELU.library is not None


def _dense(x: Tensor) -> bool:
    return x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)


def gelu(x: Tensor, over: bool = False) -> Tensor:
    """Return GELU of a tensor, written over it if asked to."""
    return _run(x, x if over else torch.empty_like(x))


def gelu_and_slope(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return GELU of a tensor and its slope there."""
    slope = torch.empty_like(x)
    return _run(x, torch.empty_like(x), slope=slope), slope


def gelu_and_back(x: Tensor, grad: Tensor) -> Tensor:
    """Return GELU of a tensor, and multiply the gradient towards it by its slope, in place; both lie in one piece."""
    return _run(x, torch.empty_like(x), grad=grad)


def _run(x: Tensor, out: Tensor, slope: Tensor | None = None, grad: Tensor | None = None) -> Tensor:
    GELU(x, out, slope, grad, x.numel())
    return out
