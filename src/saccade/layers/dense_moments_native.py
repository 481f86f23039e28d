"""Means and variances of a dense block's channels on the CPU, and the gradients that come by them, by C code."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from . import native

SOURCE = Path(__file__).with_suffix(".c")
MOMENTS = native.Function(SOURCE, "moments", (*[ctypes.c_void_p] * 2, ctypes.c_int64, ctypes.c_int))
GRADIENT = native.Function(SOURCE, "gradient", (*[ctypes.c_void_p] * 5, *[ctypes.c_int] * 5))
PARTS = 16  # as in the source


def moments(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of each column of rows, and the sum of its squared deviations, in float64."""
    found = torch.empty(PARTS, 2, matrix.shape[1], dtype=torch.float64, device="cpu")
    MOMENTS(matrix, found, *matrix.shape)
    return found[0, 0], found[0, 1]


def gradient(whole: Tensor, grad: Tensor, slope: Tensor, offset: Tensor, *, halve: bool) -> Tensor:
    """Return the gradient towards a block's output, B * H * W, C.

    Args:
        whole: that output, B, C, H, W, channels last.
        grad: the gradient of it, pooled, B, C, H', W'.
        slope: what each value's own part in its channel's variance is multiplied by, C.
        offset: what is the same for all values of a channel, C.
        halve: whether it was averaged over cells of 2x2.
    """
    grad = grad.contiguous(memory_format=torch.channels_last)
    batch, channels, height, width = whole.shape
    out = whole.new_empty(batch * height * width, channels)
    GRADIENT(whole, grad, slope.contiguous(), offset.contiguous(), out, batch, height, width, channels, halve)
    return out
