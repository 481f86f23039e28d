"""Convolution of each channel by itself on maps B, H * W, C, with what is beside it, by a GPU kernel of our own.

A library's kernel takes two to four times what reading and writing a map takes, and a sum or an activation beside it is
a pass of its own. Here the map itself is added, and GELU applied, before anything is written; the gradient of the map
is the same by the turned kernel, and those of kernels and bias are one more. The compiler takes them into the code that
it generates.
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
VALUES = 2048  # of a map that a program for GELU's gradient holds
WARPS = 4096  # that the gradient of cells is shared out to, about


def _installed() -> bool:
    try:
        found = importlib.metadata.version("triton").split(".")[:2]
    except importlib.metadata.PackageNotFoundError:
        return False
    return torch.version.hip is None and tuple(int(part) for part in found if part.isdecimal()) >= OLDEST


INSTALLED = _installed()


class Tiles(NamedTuple):
    """What a program holds: rows, groups of columns, columns of a group, channels; and its warps."""

    rows: int
    groups: int
    across: int
    channels: int
    warps: int


def serves(x: Tensor, size: int) -> bool:
    """Tell whether the kernel takes a map: half precision, in code that is compiled for a GPU."""
    return compiles_for_gpu(x) and INSTALLED and size in SIZES and x.dtype in (torch.float16, torch.bfloat16)


def tiles_of(height: int, width: int, size: int) -> Tiles:
    """Return the tiles for a map: a thread holds one or two channels of each of its columns."""
    known = {16: (4, 4, 64, 4), 8: (2, 4, 64, 2), 4: (1, 4, 128, 2), 14: (1, 7, 128, 2), 1: (2, 4, 128, 4)}
    if size == 5:
        known = {16: (4, 4, 32, 2), 8: (2, 4, 32, 2), 4: (1, 4, 64, 1), 14: (1, 2, 64, 1), 1: (2, 4, 32, 2)}
    wide = next(wide for wide in known if width % wide == 0)  # so that few columns have nothing to do
    rows = next((rows for rows in (28, 16, 14, 7) if height % rows == 0), 4 if height <= 4 else 8)
    return Tiles(rows, *known[wide])  # constants, even for sides that are symbols


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
        if total is not None:
            grad = gelu_gradient(grad, total)
        height, width, residual = ctx.how
        of_x = convolve(grad, cells, None, height, width, True, residual, False, True)[0]
        sums = cell_gradients(grad, x, height, width, weight.shape[-1]).sum(0).to(weight.dtype)
        of_weight = sums[:-1].t().reshape(weight.shape)
        return of_x, of_weight, sums[-1] if ctx.needs_input_grad[2] else None, None, None, None


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
    start(kernel("convolve"))[(batch * _programs(height, width, tiles), -(-channels // tiles.channels))](
        x,
        cells,
        cells if bias is None else bias,
        total if keep else x,  # which is not written to
        active if gelu else x,
        height,
        width,
        channels,
        size,
        *_constants(width, tiles),
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


def _programs(height: int, width: int, tiles: Tiles) -> int:
    """Return how many programs a map takes."""
    return -(-width // (tiles.groups * tiles.across)) * -(-height // tiles.rows)


def _constants(width: int, tiles: Tiles) -> tuple[int, ...]:
    """Return what a kernel is compiled for, the last whether no column is left over."""
    return *tiles[:-1], width % (tiles.groups * tiles.across) == 0


def run_cell_gradients(
    start: Callable[[Any], Any],
    grad: Tensor,
    x: Tensor,
    height: int,
    width: int,
    size: int,
    tiles: Tiles | None = None,
) -> Tensor:
    """Return the gradients of kernels' cells and, last, of the bias as parts to be added up: parts, k * k + 1, C.

    Args:
        start: makes the kernel one that can be started.
        grad: of the output, B, H * W, C.
        x: the map.
        height: of the map.
        width: of the map.
        size: side of the kernels.
        tiles: chosen by the map's shape if not given.
    """
    grad, x = grad.contiguous(), x.contiguous()
    batch, _, channels = x.shape
    tiles = tiles or tiles_of(height, width, size)
    programs, blocks = _programs(height, width, tiles), -(-channels // tiles.channels)
    each = -(-batch * programs * blocks * tiles.warps // WARPS)  # images that a program adds up
    parts = -(-batch // each) * programs
    sums = x.new_empty(parts, size * size + 1, channels, dtype=torch.float32)
    start(kernel("cell_gradients"))[(parts, blocks)](
        x, grad, sums, batch, each, height, width, channels, size, *_constants(width, tiles), num_warps=tiles.warps
    )
    return sums


@torch.library.triton_op("saccade::depthwise_cell_gradients", mutates_args={})
def cell_gradients(grad: Tensor, x: Tensor, height: int, width: int, size: int) -> Tensor:
    """See `run_cell_gradients`."""
    return run_cell_gradients(torch.library.wrap_triton, grad, x, height, width, size)


def run_gelu_gradient(start: Callable[[Any], Any], grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of x from that of GELU(x), which a compiler by itself writes anew for each of its readers.

    Args:
        start: makes the kernel one that can be started.
        grad: of GELU(x).
        x: what GELU was applied to.
    """
    grad, x = grad.contiguous(), x.contiguous()
    out, count = torch.empty_like(x), x.numel()
    start(kernel("gelu_gradient"))[(-(-count // VALUES),)](grad, x, out, count, VALUES, num_warps=8)
    return out


@torch.library.triton_op("saccade::gelu_gradient", mutates_args={})
def gelu_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """See `run_gelu_gradient`."""
    return run_gelu_gradient(torch.library.wrap_triton, grad, x)
