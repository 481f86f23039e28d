"""The stem of a dense embedding on the CPU, by `dense_stem_native.c`."""

import ctypes
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from . import native

TYPES = (*[ctypes.c_void_p] * 4, *[ctypes.c_int] * 5)
SOURCE = Path(__file__).with_suffix(".c")
STEM = native.Function(SOURCE, "stem", TYPES)
BACK = native.Function(SOURCE, "stem_back", TYPES)
EVEN = 16  # channels that it makes come in multiples of it


def serves(x: Tensor, weight: Tensor, bias: Tensor, *others: Tensor) -> bool:
    """Tell whether the code takes images, B, C, H, W, kernels, out, C, 3, 3, a bias, out, and what else there is."""
    sizes = weight.shape[1:] == (x.shape[1], 3, 3) and bias.shape == weight.shape[:1]
    fitting = native.fits(x, weight, bias, *others) and x.numel() > 0 and len(weight) % EVEN == 0
    return sizes and fitting and STEM.library is not None


def stem(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve images and pool to half the side, B, out, H / 2, W / 2, channels last."""
    size = len(x), len(weight), -(-x.shape[2] // 2), -(-x.shape[3] // 2)
    out = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    _run(STEM, x, weight, bias, out.permute(0, 2, 3, 1))
    return out


def kernel_gradient(x: Tensor, weight: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of the kernels from that of the result, B, out, H / 2, W / 2."""
    found = weight.new_empty(len(weight), 3, 3, weight.shape[1])
    _run(BACK, x, weight, grad.permute(0, 2, 3, 1), found)
    return found.permute(0, 3, 1, 2)


def _run(function: native.Function, x: Tensor, weight: Tensor, given: Tensor, out: Tensor) -> None:
    batch, channels, height, width = x.shape
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1)).contiguous()
    kernels = weight.permute(0, 2, 3, 1).contiguous()
    if function(padded, kernels, given.contiguous(), out, batch, channels, height, width, len(weight)):
        raise MemoryError(f"no memory for convolving images of {height} x {width}; take smaller ones")
