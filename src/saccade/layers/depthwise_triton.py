"""Convolution of each channel by itself on maps B, H * W, C, with what is beside it, by GPU kernels of our own.

A library's kernels take two to four times what reading and writing a map takes, and a sum or an activation beside them
is a pass of its own. Here the map itself is added, and GELU applied, before anything is written; backward, one pass over
the gradient and the map gives the gradients of map, kernels and bias. The compiler takes the kernels into the code that
it generates.
"""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .activation import quick_gradient
from .depthwise_kernels import kernels
from .exporting import compiles_for_gpu

INSTALLED = importlib.util.find_spec("triton") is not None
SIZES = (3, 5)  # sides of kernels


class Tiles(NamedTuple):
    """What a program holds: rows that it writes at a time, columns, channels; its warps; and how often it goes on."""

    rows: int
    columns: int
    channels: int
    warps: int
    bands: int = 1


def serves(x: Tensor, size: int) -> bool:
    """Tell whether the kernels take a map: half precision, in code that is compiled for a GPU."""
    return compiles_for_gpu(x) and INSTALLED and size in SIZES and x.dtype in (torch.float16, torch.bfloat16)


def forward_tiles(height: int, width: int, channels: int) -> Tiles:
    """Return the tiles of a convolution."""
    columns = _columns(width)
    return (
        Tiles(_rows(height), columns, 64, max(columns // 2, 1))
        if channels >= 64
        else Tiles(_rows(height), columns, 32, 4)
    )


def backward_tiles(height: int, width: int, channels: int) -> Tiles:
    """Return the tiles of its gradients."""
    return forward_tiles(height, width, channels)._replace(bands=4)


def _rows(height: int) -> int:
    """Return how many rows are written at a time: sides of common maps are multiples of seven or eight."""
    return min(height, 7 if height % 7 == 0 else 8)


def _columns(width: int) -> int:
    return 8 if width % 8 == 0 or width < 8 else 4 if width % 4 == 0 else 16


class Convolved(torch.autograd.Function):
    """Convolution of a map, plus the map itself if asked, and GELU of that if asked.

    Args:
        x: the map, B, H * W, C.
        weight: kernels, C, 1, k, k.
        bias: of each channel.
        grid: H, W.
        residual: add the map.
        gelu: apply GELU.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, grid: tuple[int, int], residual: bool, gelu: bool
    ) -> Tensor:
        """Return a map of the same shape."""
        cells = cells_of(weight)
        total, active = convolve(x, cells, bias, *grid, False, residual, gelu, True)
        ctx.save_for_backward(x, cells, total if gelu else None)
        ctx.how = (*grid, residual)
        return active if gelu else total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients towards map, kernels and bias."""
        x, cells, total = ctx.saved_tensors
        if total is not None:
            grad = quick_gradient(grad, total)
        height, width, residual = ctx.how
        size = round(len(cells) ** 0.5)
        if size == 3:
            of_x, parts = gradients(grad, x, cells, height, width, residual, True)
        else:  # all at once would take more registers than there are
            of_x = convolve(grad, cells, None, height, width, True, residual, False, True)[0]
            parts = gradients(grad, x, cells, height, width, residual, False)[1]
        sums = parts.sum(0)
        of_weight = sums[:-1].t().reshape(-1, 1, size, size).to(cells.dtype)
        return of_x, of_weight, sums[-1].to(cells.dtype), None, None, None


def cells_of(weight: Tensor) -> Tensor:
    """Return kernels C, 1, k, k as k * k, C."""
    return weight.flatten(1).t().contiguous()


def apply(x: Tensor, weight: Tensor, bias: Tensor, grid: tuple[int, int], *, residual: bool, gelu: bool) -> Tensor:
    """Convolve a map, add the map itself and apply GELU, as asked; see `Convolved`."""
    weight, bias = weight.to(x.dtype), bias.to(x.dtype)
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
        start: makes a kernel one that can be started.
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
    tiles = tiles or forward_tiles(height, width, channels)
    total, active = (torch.empty_like(x) if asked else x.new_empty(0) for asked in (keep, gelu))
    strips, bands = -(-width // tiles.columns), -(-height // tiles.rows)
    start(kernels()[0])[(batch * bands * strips, -(-channels // tiles.channels))](
        x,
        cells,
        cells if bias is None else bias,
        total if keep else active,
        active if gelu else total,
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


def run_gradients(
    start: Callable[[Any], Any],
    grad: Tensor,
    x: Tensor,
    cells: Tensor,
    height: int,
    width: int,
    residual: bool,
    of_map: bool,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the map, empty if not asked for, parts of the others', P, k * k + 1, C."""
    grad, x = grad.contiguous(), x.contiguous()
    batch, _, channels = x.shape
    size = round(len(cells) ** 0.5)
    tiles = tiles or backward_tiles(height, width, channels)
    strips, bands = -(-width // tiles.columns), batch * -(-height // tiles.rows)
    programs = -(-bands // tiles.bands) * strips
    of_x = torch.empty_like(x) if of_map else x.new_empty(0)
    parts = x.new_empty(programs, size * size + 1, channels, dtype=torch.float32)
    start(kernels()[1])[(programs, -(-channels // tiles.channels))](
        grad,
        x,
        cells,
        of_x,
        parts,
        bands,
        height,
        width,
        channels,
        size,
        tiles.rows,
        tiles.columns,
        tiles.channels,
        tiles.bands,
        residual,
        of_map,
        num_warps=tiles.warps,
    )
    return of_x, parts


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


@torch.library.triton_op("saccade::depthwise_gradients", mutates_args={})
def gradients(
    grad: Tensor, x: Tensor, cells: Tensor, height: int, width: int, residual: bool, of_map: bool
) -> tuple[Tensor, Tensor]:
    """See `run_gradients`."""
    return run_gradients(torch.library.wrap_triton, grad, x, cells, height, width, residual, of_map)
