"""A dense block on the CPU, channels last, by `dense_native.c`."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from . import native

SOURCE = Path(__file__).with_suffix(".c")
BLOCK = native.Function(SOURCE, "dense_block", (*[ctypes.c_void_p] * 5, *[ctypes.c_int] * 8))
BACK = native.Function(SOURCE, "dense_block_back", (*[ctypes.c_void_p] * 7, *[ctypes.c_int] * 7))
EVEN = 16  # channels come in multiples of it


def serves(x: Tensor, first: Sequence[Tensor], kernels: Sequence[Tensor]) -> bool:
    """Tell whether the code takes maps, B, C, H, W, and the kernels of a dense block's layers."""
    growth, hidden = kernels[0].shape[:2]
    widths = [(hidden, x.shape[1] + index * growth, 1, 1) for index in range(len(kernels))]
    sizes = [weight.shape for weight in first] == widths and {k.shape for k in kernels} == {(growth, hidden, 3, 3)}
    even = not any(side % EVEN for side in (x.shape[1], growth, hidden))
    return sizes and even and native.fits(x, *first, *kernels) and BLOCK.library is not None


def dense_block(x: Tensor, first: Sequence[Tensor], kernels: Sequence[Tensor], *, halve: bool = False) -> Tensor:
    """Return a dense block's output, B, all channels, H, W, channels last.

    Args:
        x: maps, B, C, H, W.
        first: the layers' 1x1 kernels, hidden, width, 1, 1.
        kernels: their 3x3 kernels, growth, hidden, 3, 3.
        halve: average it over cells of 2x2.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    (batch, given, height, width), (growth, hidden) = x.shape, kernels[0].shape[:2]
    size = (height // 2, width // 2) if halve else (height, width)
    out = x.new_empty(batch, *size, given + len(kernels) * growth)
    matrices, second = torch.cat([weight.flatten() for weight in first]), torch.stack(list(kernels)).contiguous()
    sizes = height, width, given, hidden, growth, len(kernels), halve
    if BLOCK(x, matrices, second, out, _room("block_room", *sizes), batch, *sizes):
        raise MemoryError(f"no memory for a dense block on maps of {height} x {width}; take smaller images")
    return out.permute(0, 3, 1, 2)


def dense_block_back(
    whole: Tensor, grad: Tensor, first: Sequence[Tensor], kernels: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Go back through a dense block.

    Args:
        whole: its output, B, all channels, H, W, channels last.
        grad: the gradient of that, B * H * W, all channels; it is written over.
        first: as the block took them.
        kernels: likewise.

    Returns:
        The gradient of what the block was given, B * H * W, C, and those of all its kernels.
    """
    batch, _, height, width = whole.shape
    growth, hidden = kernels[0].shape[:2]
    given = first[0].shape[1]
    matrices, second = torch.cat([weight.flatten() for weight in first]), torch.stack(list(kernels)).contiguous()
    totals = torch.zeros_like(matrices), torch.zeros_like(second)
    sizes = height, width, given, hidden, growth, len(kernels)
    if BACK(whole, grad, matrices, second, *totals, _room("back_room", *sizes), batch, *sizes):
        raise MemoryError(f"no memory for a dense block on maps of {height} x {width}; take smaller images")
    of_first = totals[0].split([weight.numel() for weight in first])
    found = [part.view_as(weight) for part, weight in zip(of_first, first, strict=True)]
    return grad[:, :given], [*found, *totals[1].unbind()]


def _room(name: str, *sizes: int) -> Tensor:
    """Return memory to work on, as much as a function of the source says; PyTorch keeps it for the next call."""
    count = getattr(BLOCK.library, name)
    count.restype = ctypes.c_int64
    return torch.empty(count(*sizes), dtype=torch.float32, device="cpu")
