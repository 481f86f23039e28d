"""Convolution of each channel by itself on maps B, H * W, C, with what is beside it, by a GPU kernel of our own.

A library's kernel takes two to four times what reading and writing a map takes, and a sum or an activation beside it is
a pass of its own. Here the map itself is added, and GELU applied, before anything is written; the gradient of the map
is the same by the turned kernel, those of kernels and bias are one more. The compiler takes them into the code that it
generates.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import halves
from .depthwise_kernel import kernel
from .exporting import compiles_for_gpu
from .parts import Due, add_all_up, ports_for
from .switch import on
from .triton_language import INSTALLED

SIZES = (3, 5)  # sides of kernels
VALUES = 2048  # that a program for GELU or its gradient holds
WARPS = 4096  # that the gradients of kernels are shared out to, about


class Tiles(NamedTuple):
    """What a program holds: rows, groups of columns, columns of a group, channels; and its warps."""

    rows: int
    groups: int
    across: int
    channels: int
    warps: int


def serves(x: Tensor, size: int) -> bool:
    """Tell whether the kernel takes a map: half precision, in code that is compiled for a GPU."""
    return takes(size) and compiles_for_gpu(x) and x.dtype in (torch.float16, torch.bfloat16)


def takes(size: int) -> bool:
    """Tell whether there is a kernel for kernels of a side."""
    return INSTALLED and on("depthwise") and size in SIZES


def tiles_of(height: int, width: int, size: int) -> Tiles:
    """Return the tiles for a map, the best that were timed on an H200, by the side that its columns are shared by."""
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
        before: a bias that the map has in it already, without a gradient from there; it gets its own here, where the
            map's is made.
        cells: the kernels as `cells_of` returns them.
        grid: H, W.
        residual: add the map.
        gelu: apply GELU.
        ports: of what is due, see `dues`, where there are any.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        before: Tensor | None,  # noqa: ARG004
        cells: Tensor,
        grid: tuple[int, int],
        residual: bool,
        gelu: bool,
        *ports: Tensor,
    ) -> Tensor:
        """Return a map of the same shape."""
        total, active, _ = convolve(x, cells, bias, *grid, False, residual, gelu, True, False)
        ctx.save_for_backward(x, weight, cells, total if gelu else None)
        ctx.how, ctx.ported = (*grid, residual), len(ports) > 0
        return active if gelu else total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients towards map, kernels and bias."""
        x, weight, cells, total = ctx.saved_tensors
        height, width, residual = ctx.how
        grad = grad if total is None else gelu_gradient(grad, total)
        _, of_weight, of_bias, of_before, *_ = ctx.needs_input_grad
        of_x, _, parts = convolve(grad, cells, None, height, width, True, residual, False, True, of_before)
        if not (of_weight or of_bias or of_before):
            return of_x, *7 * [None]
        found = gradients(grad, x, height, width, weight.shape[-1])
        made = [found, parts] if of_before else [found]
        if ctx.ported:
            return of_x, *7 * [None], *made
        sums, *for_before = add_all_up(made)
        for_weight, for_bias = sums.to(weight.dtype).split([weight.numel(), len(weight)])
        biases = for_bias if of_bias else None, for_before[0].to(weight.dtype) if of_before else None
        return of_x, for_weight.view(weight.shape), *biases, *4 * [None]


def cells_of(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return kernels C, 1, k, k as k * k, C, in a map's precision; they may have been laid out with others."""
    held = halves.of(weight)
    if held is not weight and held.dtype == dtype:
        return held
    return weight.detach().to(dtype).flatten(1).t().contiguous()


def dues(batch: int, grid: tuple[int, int], weight: Tensor, bias: Tensor | None, before: Tensor | None) -> list[Due]:
    """Return what gets its gradients in parts where `Convolved` takes a map."""
    tiles = tiles_of(*grid, weight.shape[-1])
    found = [Due(_shares(batch, *grid, len(weight), tiles)[1], (weight, bias))]
    return found if before is None else [*found, Due(batch * _programs(*grid, tiles), (before,))]


def apply(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    grid: tuple[int, int],
    *,
    residual: bool,
    gelu: bool,
    before: Tensor | None = None,
) -> Tensor:
    """Convolve a map, add the map itself and apply GELU, as asked; see `Convolved`."""
    cells = cells_of(weight, x.dtype)
    if torch.is_grad_enabled():
        ports = ports_for(dues(len(x), grid, weight, bias, before))
        return Convolved.apply(x, weight, bias, before, cells, grid, residual, gelu, *ports)
    return convolve(x, cells, bias, *grid, False, residual, gelu, not gelu, False)[int(gelu)]


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
    sums: bool,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Convolve a map B, H * W, C; return the sum, its GELU and parts, C, of what it adds up to, or nothing for each.

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
        sums: return the parts.
        tiles: chosen by the map's shape if not given.
    """
    x = x.contiguous()
    batch, _, channels = x.shape
    size = round(len(cells) ** 0.5)
    tiles = tiles or tiles_of(height, width, size)
    programs = batch * _programs(height, width, tiles)
    total, active = (torch.empty_like(x) if asked else x.new_empty(0) for asked in (keep, gelu))
    parts = x.new_empty(programs if sums else 0, channels, dtype=torch.float32)
    start(kernel("convolve"))[(programs, -(-channels // tiles.channels))](
        x,
        cells,
        cells if bias is None else bias,
        total if keep else x,  # which is not written to
        active if gelu else x,
        parts if sums else x,
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
        sums,
        num_warps=tiles.warps,
    )
    return total, active, parts


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
    sums: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `run_convolve`."""
    return run_convolve(torch.library.wrap_triton, x, cells, bias, height, width, turned, residual, gelu, keep, sums)


def _programs(height: int, width: int, tiles: Tiles) -> int:
    """Return how many programs a map takes."""
    return -(-width // (tiles.groups * tiles.across)) * -(-height // tiles.rows)


def _constants(width: int, tiles: Tiles) -> tuple[int, ...]:
    """Return what a kernel is compiled for, the last whether no column is left over."""
    return *tiles[:-1], bool(width % (tiles.groups * tiles.across) == 0)


def run_gradients(
    start: Callable[[Any], Any],
    grad: Tensor,
    x: Tensor,
    height: int,
    width: int,
    size: int,
    tiles: Tiles | None = None,
) -> Tensor:
    """Return the gradients of kernels C, 1, k, k and bias as parts to be added up: parts, C * k * k + C.

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
    each, parts = _shares(batch, height, width, channels, tiles)
    sums = x.new_empty(parts, (size * size + 1) * channels, dtype=torch.float32)
    start(kernel("gradients"))[(parts, -(-channels // tiles.channels))](
        x, grad, sums, batch, each, height, width, channels, size, *_constants(width, tiles), num_warps=tiles.warps
    )
    return sums


def _shares(batch: int, height: int, width: int, channels: int, tiles: Tiles) -> tuple[int, int]:
    """Return how many images a program adds up for the gradients of kernels, and how many parts that makes."""
    programs = _programs(height, width, tiles)
    each = -(-batch * programs * -(-channels // tiles.channels) * tiles.warps // WARPS)
    return each, -(-batch // each) * programs


@torch.library.triton_op("saccade::depthwise_gradients", mutates_args={})
def gradients(grad: Tensor, x: Tensor, height: int, width: int, size: int) -> Tensor:
    """See `run_gradients`."""
    return run_gradients(torch.library.wrap_triton, grad, x, height, width, size)


def run_gelu(start: Callable[[Any], Any], x: Tensor) -> Tensor:
    """Return GELU(x); a compiler's own kernel reads and writes less than half of what the memory could.

    Args:
        start: makes the kernel one that can be started.
        x: any tensor.
    """
    x = x.contiguous()
    out, count = torch.empty_like(x), x.numel()
    start(kernel("activate"))[(-(-count // VALUES),)](x, out, count, VALUES, num_warps=8)
    return out


@torch.library.triton_op("saccade::gelu", mutates_args={})
def gelu(x: Tensor) -> Tensor:
    """See `run_gelu`."""
    return run_gelu(torch.library.wrap_triton, x)


def run_gelu_gradient(start: Callable[[Any], Any], grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of x from that of GELU(x), which a compiler by itself writes anew for each of its readers.

    Args:
        start: makes the kernel one that can be started.
        grad: of GELU(x).
        x: what GELU was applied to.
    """
    grad, x = grad.contiguous(), x.contiguous()
    out, count = torch.empty_like(x), x.numel()
    start(kernel("activate_back"))[(-(-count // VALUES),)](grad, x, out, count, VALUES, num_warps=8)
    return out


@torch.library.triton_op("saccade::gelu_gradient", mutates_args={})
def gelu_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """See `run_gelu_gradient`."""
    return run_gelu_gradient(torch.library.wrap_triton, grad, x)
