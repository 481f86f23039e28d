"""Convolution of each channel by itself on maps B, H * W, C, with what is beside it, by a GPU kernel of our own.

A library's kernel takes two to four times what reading and writing a map takes, and a sum or an activation beside it is
a pass of its own. Here the map itself is added, and GELU applied, before anything is written; the gradient of the map
is the same by the turned kernel. The compiler takes it into the code that it generates.
"""

import importlib.metadata
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .depthwise_kernel import kernel
from .exporting import compiles_for_gpu

OLDEST = (3, 5)  # version of Triton that the kernel was compiled with
SIZES = (3, 5)  # sides of kernels
VALUES = 2048  # of a map that a program for GELU's gradient holds at a time
STEPS = 8  # times that it does so


def _installed() -> bool:
    try:
        found = importlib.metadata.version("triton").split(".")[:2]
    except importlib.metadata.PackageNotFoundError:
        return False
    return torch.version.hip is None and tuple(int(part) for part in found if part.isdecimal()) >= OLDEST


INSTALLED = _installed()


class Tiles(NamedTuple):
    """What a program holds: rows, columns, channels; and its warps."""

    rows: int
    columns: int
    channels: int
    warps: int


def serves(x: Tensor, size: int) -> bool:
    """Tell whether the kernel takes a map: half precision, in code that is compiled for a GPU."""
    return compiles_for_gpu(x) and INSTALLED and size in SIZES and x.dtype in (torch.float16, torch.bfloat16)


def tiles_of(height: int, width: int, size: int) -> Tiles:
    """Return the tiles for a map: four channels of a column a thread, two where there are 25 cells to hold."""
    columns = _columns(width)
    if size == 3:
        return Tiles(_rows(height), columns, *{2: (64, 1), 4: (128, 4), 8: (64, 4), 16: (64, 8)}[columns])
    return Tiles(_rows(height), columns, *{2: (128, 4), 4: (64, 4), 8: (32, 4), 16: (32, 8)}[columns])


def _rows(height: int) -> int:
    """Return how many rows a program writes: sides of common maps are multiples of seven or eight."""
    return 4 if height <= 4 else 7 if height % 7 == 0 else 8  # a constant, even for a side that is a symbol


def _columns(width: int) -> int:
    """Return how many columns a program holds, a power of two: as few threads as can be have nothing to do."""
    return 8 if width % 8 == 0 or width < 8 else 4 if width % 4 == 0 else 2 if width % 2 == 0 else 16


class Convolved(torch.autograd.Function):
    """Convolution of a map, plus the map itself if asked, and GELU of that if asked.

    Args:
        x: the map, B, H * W, C.
        weight: kernels, C, 1, k, k.
        bias: of each channel, or none.
        grid: H, W.
        residual: add the map.
        gelu: apply GELU.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, grid: tuple[int, int], residual: bool, gelu: bool
    ) -> Tensor:
        """Return a map of the same shape."""
        cells = cells_of(weight)
        total, active = convolve(x, cells, bias, *grid, False, residual, gelu, True)
        ctx.save_for_backward(x, weight, cells, total if gelu else None)
        ctx.how = (*grid, residual)
        return active if gelu else total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients towards map, kernels and bias."""
        x, weight, cells, total = ctx.saved_tensors
        sums = None
        if total is not None:
            grad, sums = gelu_gradient(grad, total)
        height, width, residual = ctx.how
        of_x = convolve(grad, cells, None, height, width, True, residual, False, True)[0]
        of_weight = by_library(grad.unflatten(1, (height, width)), x.unflatten(1, (height, width)), weight)
        sums = grad.float().flatten(0, 1) if sums is None else sums
        of_bias = sums.sum(0).to(weight.dtype) if ctx.needs_input_grad[2] else None
        return of_x, of_weight, of_bias, None, None, None


def by_library(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the library's gradient of kernels C, 1, k, k from the output's and the map, both B, H, W, C."""
    grad, x = grad.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2)
    edge = [weight.shape[-1] // 2] * 2
    found: Tensor = torch.ops.aten.convolution_backward(
        grad, x, weight, None, [1, 1], edge, [1, 1], False, [0, 0], len(weight), [False, True, False]
    )[1]
    return found


def cells_of(weight: Tensor) -> Tensor:
    """Return kernels C, 1, k, k as k * k, C."""
    return weight.flatten(1).t().contiguous()


def apply(
    x: Tensor, weight: Tensor, bias: Tensor | None, grid: tuple[int, int], *, residual: bool, gelu: bool
) -> Tensor:
    """Convolve a map, add the map itself and apply GELU, as asked; see `Convolved`."""
    weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    if torch.is_grad_enabled():
        return Convolved.apply(x, weight, bias, grid, residual, gelu)
    return convolve(x, cells_of(weight), bias, *grid, False, residual, gelu, not gelu)[int(gelu)]


def run_convolve(
    start: Callable[[Any], Any],
    x: Tensor,
    cells: Tensor,
    bias: Tensor | None,
    height: int,
    width: int,
    turned: bool,
    residual: bool,
    gelu: bool,
    keep: bool,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:
    """Convolve a map B, H * W, C; return the sum and its GELU, empty where they are not asked for.

    Args:
        start: makes the kernel one that can be started.
        x: the map.
        cells: kernels, k * k, C.
        bias: of each channel.
        height: of the map.
        width: of the map.
        turned: by half a turn, which gives the gradient of the map from that of the output.
        residual: add the map.
        gelu: apply GELU.
        keep: return the sum.
        tiles: chosen by the map's shape if not given.
    """
    x = x.contiguous()
    batch, _, channels = x.shape
    size = round(len(cells) ** 0.5)
    tiles = tiles or tiles_of(height, width, size)
    total, active = (torch.empty_like(x) if asked else x.new_empty(0) for asked in (keep, gelu))
    strips, bands = -(-width // tiles.columns), -(-height // tiles.rows)
    start(kernel("convolve"))[(batch * bands * strips, -(-channels // tiles.channels))](
        x,
        cells,
        cells if bias is None else bias,
        total if keep else x,  # which is not written to
        active if gelu else x,
        height,
        width,
        channels,
        size,
        tiles.rows,
        tiles.columns,
        tiles.channels,
        turned,
        bias is not None,
        residual,
        gelu,
        keep,
        num_warps=tiles.warps,
    )
    return total, active


@torch.library.triton_op("saccade::depthwise", mutates_args={})
def convolve(
    x: Tensor,
    cells: Tensor,
    bias: Tensor | None,
    height: int,
    width: int,
    turned: bool,
    residual: bool,
    gelu: bool,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """See `run_convolve`."""
    return run_convolve(torch.library.wrap_triton, x, cells, bias, height, width, turned, residual, gelu, keep)


def run_gelu_gradient(start: Callable[[Any], Any], grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of x from that of GELU(x), both B, N, C, and its sums over many rows each, for all channels.

    A compiler by itself writes it anew for each of its readers, and computes it once more for the sum.

    Args:
        start: makes the kernel one that can be started.
        grad: of GELU(x).
        x: what GELU was applied to.
    """
    grad, x = grad.contiguous(), x.contiguous()
    count, channels = x.shape[0] * x.shape[1], x.shape[2]
    wide = next((one for one in (128, 64, 32) if channels % one == 0), 64)
    tall = VALUES // wide
    rows = STEPS * tall
    out, sums = torch.empty_like(x), x.new_empty(-(-count // rows), channels, dtype=torch.float32)
    start(kernel("gelu_gradient"))[(-(-count // rows), -(-channels // wide))](
        grad, x, out, sums, count, channels, rows, tall, wide, num_warps=4
    )
    return out, sums


@torch.library.triton_op("saccade::gelu_gradient", mutates_args={})
def gelu_gradient(grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """See `run_gelu_gradient`."""
    return run_gelu_gradient(torch.library.wrap_triton, grad, x)
