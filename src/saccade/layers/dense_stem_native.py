"""The stem of a dense embedding on the CPU, by `dense_stem_native.c`."""

import ctypes
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from . import native

TYPES = (*[ctypes.c_void_p] * 4, *[ctypes.c_int] * 5)
STEM = native.Function(Path(__file__).with_suffix(".c"), "stem", TYPES)
EVEN = 16  # channels that it makes come in multiples of it


def serves(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Tell whether the code takes images, B, C, H, W, and kernels, out, C, 3, 3."""
    fitting = native.fits(x, weight, bias) and x.numel() > 0 and len(weight) % EVEN == 0
    return fitting and STEM.library is not None


def stem(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve images and pool to half the side, B, out, H / 2, W / 2, channels last."""
    batch, channels, height, width = x.shape
    size = batch, len(weight), -(-height // 2), -(-width // 2)
    out = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    lie = [part.contiguous() for part in (padded, weight.permute(0, 2, 3, 1), bias, out.permute(0, 2, 3, 1))]
    if STEM(*lie, batch, channels, height, width, len(weight)):
        raise MemoryError(f"no memory for convolving images of {height} x {width}; take smaller ones")
    return out
