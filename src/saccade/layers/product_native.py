"""Products of matrices on the CPU by `product_native.c`, where PyTorch's own leave more of the processor idle."""

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from . import native

SIZES = (*[ctypes.c_int64] * 2, *[ctypes.c_int] * 3)
MULTIPLY = native.Function(Path(__file__).with_suffix(".c"), "multiply", (*[ctypes.c_void_p] * 4, *SIZES))
FEW = 12  # rows from which on it is worth it


def ready(*tensors: Tensor | None) -> bool:
    """Tell whether the code is there, quicker than PyTorch's own, and takes tensors."""
    given = [tensor for tensor in tensors if tensor is not None]
    return _slow() and native.fits(*given) and not torch.is_autocast_enabled("cpu") and MULTIPLY.library is not None


def serves(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> bool:
    """Tell whether the code multiplies N, K by a matrix K, M and adds a bias, or B, N, K by B, K, M.

    What does not fit together is PyTorch's to refuse: the code does not look at sizes.
    """
    return (
        (*x.shape[:-2], x.shape[-1]) == matrix.shape[:-1]
        and (bias is None or bias.shape == matrix.shape[-1:])
        and x.shape[-1] % 4 == 0
        and x.shape[-2] >= FEW
        and x.is_contiguous()
        and (matrix.is_contiguous() or matrix.mT.is_contiguous())
        and ready(x, matrix, bias)
    )


def multiply(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ matrix + bias, N, M or B, N, M, without a gradient."""
    *batch, inner, cols = matrix.shape
    out = x.new_empty(*x.shape[:-1], cols)
    bias = None if bias is None else bias.contiguous()
    MULTIPLY(x, matrix, bias, out, *(batch or [1]), x.shape[-2], inner, cols, not matrix.is_contiguous())
    return out


@functools.cache
def arm_compute() -> bool:
    """Tell whether PyTorch was built with the Arm Compute Library."""
    asked = getattr(torch.backends.mkldnn, "is_acl_available", None)
    return bool(asked and asked())


@functools.cache
def _slow() -> bool:
    """Tell whether PyTorch's own products are the slower ones: Arm's, with vectors of 128 bits."""
    return arm_compute() and torch.backends.cpu.get_cpu_capability() == "DEFAULT"
