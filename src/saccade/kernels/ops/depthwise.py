"""Convolution of each channel by itself on maps B, H * W, C, with what is beside it, by a GPU kernel.

A library's kernel takes two to four times what reading and writing a map takes, and a sum or an activation beside it is
a pass of its own. Here the map itself is added, and GELU applied, before anything is written; the gradient of the map
is the same by the turned kernel, those of kernels and bias are one more.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...layers.numerics import upcast
from ..compiling import HALVES, compiles_for_gpu
from ..triton.depthwise import kernel
from ..triton.language import INSTALLED, launchable
from .add_up import add_up
from .gelu import gelu_gradient

SIZES = (3, 5)  # sides of kernels
WARPS = 4096  # that the gradients of kernels are shared out to, about


class Tiles(NamedTuple):
    """What a program holds: rows, groups of columns, columns of a group, channels; and its warps."""

    rows: int
    groups: int
    across: int
    channels: int
    warps: int


def serves(x: Tensor, size: int) -> bool:
    """Whether the kernel takes a map: half precision, in code that is compiled for a GPU."""
    return INSTALLED and size in SIZES and compiles_for_gpu(x) and x.dtype in HALVES


def tiles_of(height: int, width: int, size: int) -> Tiles:
    """Return the tiles for a map, the best that were timed on an H200, by the side that its columns are shared by."""
    known = {16: (4, 4, 64, 4), 8: (2, 4, 64, 2), 4: (1, 4, 128, 2), 14: (1, 7, 128, 2), 1: (2, 4, 128, 4)}
    if size == 5:
        known = {16: (4, 4, 32, 2), 8: (2, 4, 32, 2), 4: (1, 4, 64, 1), 14: (1, 2, 64, 1), 1: (2, 4, 32, 2)}
    wide = next(wide for wide in known if width % wide == 0)  # so that few columns have nothing to do
    rows = next((rows for rows in (28, 16, 14, 7) if height % rows == 0), 4 if height <= 4 else 8)
    return Tiles(rows, *known[wide])  # constants, even for sides that are symbols


def convolve_beside(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    grid: tuple[int, int],
    *,
    residual: bool,
    gelu: bool,
    before: Tensor | None = None,
) -> Tensor:
    """Convolve a map, add the map itself and apply GELU, as asked.

    Args:
        x: the map, B, H * W, C.
        weight: kernels, C, 1, k, k.
        bias: of each channel, or none.
        grid: H, W.
        residual: add the map.
        gelu: apply GELU.
        before: a bias that the map has in it already, without a gradient from there; it gets its own here.
    """
    cells = cells_of(weight, x.dtype)
    if torch.is_grad_enabled():
        return Convolved.apply(x, weight, bias, before, cells, grid, residual, gelu)
    return convolve(x, cells, bias, *grid, False, residual, gelu, not gelu, False)[int(gelu)]


class Convolved(torch.autograd.Function):
    """See `convolve_beside`; `cells` are the kernels as `cells_of` returns them."""

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
    ) -> Tensor:
        """Return a map of the same shape."""
        total, active, _ = convolve(x, cells, bias, *grid, False, residual, gelu, True, False)
        ctx.save_for_backward(x, weight, cells, total if gelu else None)
        ctx.how = *grid, residual
        return active if gelu else total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients towards map, kernels and biases."""
        x, weight, cells, total = ctx.saved_tensors
        height, width, residual = ctx.how
        grad = grad if total is None else gelu_gradient(grad, total)
        _, of_weight, of_bias, of_before, *_ = ctx.needs_input_grad
        of_x, _, parts = convolve(grad, cells, None, height, width, True, residual, False, True, of_before)
        if not (of_weight or of_bias or of_before):
            return of_x, *7 * [None]
        found = gradients(grad, x, height, width, weight.shape[-1])
        sums, *for_before = add_up(found, parts) if of_before else add_up(found)
        for_weight, for_bias = sums.to(weight.dtype).split([weight.numel(), len(weight)])
        biases = for_bias if of_bias else None, for_before[0].to(weight.dtype) if of_before else None
        return of_x, for_weight.view(weight.shape), *biases, *4 * [None]


def cells_of(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return kernels C, 1, k, k as k * k, C, in a map's precision."""
    return weight.detach().to(dtype).flatten(1).t().contiguous()


@torch.library.triton_op("saccade::depthwise_conv", mutates_args={})
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
    """Convolve a map B, H * W, C; return the sum, its GELU and parts, C, of what it adds up to, or nothing for each.

    Args:
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
    """
    x = x.contiguous()
    batch, _, channels = x.shape
    size = round(len(cells) ** 0.5)
    tiles = tiles_of(height, width, size)
    programs = batch * _programs(height, width, tiles)
    total, active = (torch.empty_like(x) if asked else x.new_empty(0) for asked in (keep, gelu))
    parts = x.new_empty(programs if sums else 0, channels, dtype=torch.float32)
    launchable(kernel("convolve"))[(programs, -(-channels // tiles.channels))](
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


def convolve_reference(
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
    """See `convolve`; all sums in one part."""
    size = round(len(cells) ** 0.5)
    weight = cells.t().reshape(-1, 1, size, size)
    weight = weight.flip(2, 3) if turned else weight
    total = by_library(x.unflatten(1, (height, width)), weight, bias).flatten(1, 2) + (x if residual else 0)
    parts = total.sum((0, 1))[None] if sums else total[:0, 0]
    return total if keep else x.new_empty(0), F.gelu(total) if gelu else x.new_empty(0), parts


@torch.library.triton_op("saccade::depthwise_conv_gradients", mutates_args={})
def gradients(grad: Tensor, x: Tensor, height: int, width: int, size: int) -> Tensor:
    """Return the gradients of kernels C, 1, k, k and bias as parts to be added up: parts, C * k * k + C.

    Args:
        grad: of the output, B, H * W, C.
        x: the map.
        height: of the map.
        width: of the map.
        size: side of the kernels.
    """
    grad, x = grad.contiguous(), x.contiguous()
    batch, _, channels = x.shape
    tiles = tiles_of(height, width, size)
    programs = _programs(height, width, tiles)
    each = -(-batch * programs * -(-channels // tiles.channels) * tiles.warps // WARPS)  # images that a program adds up
    parts = -(-batch // each) * programs
    sums = x.new_empty(parts, (size * size + 1) * channels, dtype=torch.float32)
    launchable(kernel("gradients"))[(parts, -(-channels // tiles.channels))](
        x, grad, sums, batch, each, height, width, channels, size, *_constants(width, tiles), num_warps=tiles.warps
    )
    return sums


def gradients_reference(grad: Tensor, x: Tensor, height: int, width: int, size: int) -> Tensor:
    """See `gradients`; all sums in one part."""
    of_map, map = (one.unflatten(1, (height, width)) for one in (grad, x))
    weight = x.new_zeros(x.shape[2], 1, size, size)
    return torch.cat([gradient_by_library(of_map, map, weight).flatten(), grad.sum((0, 1))])[None]


def _programs(height: int, width: int, tiles: Tiles) -> int:
    """Return how many programs a map takes."""
    return -(-width // (tiles.groups * tiles.across)) * -(-height // tiles.rows)


def _constants(width: int, tiles: Tiles) -> tuple[int, ...]:
    """Return what a kernel is compiled for, the last whether no column is left over."""
    return *tiles[:-1], bool(width % (tiles.groups * tiles.across) == 0)


class Turned(torch.autograd.Function):
    """The library's convolution, its gradient towards the map by the turned kernel.

    cuDNN's own takes twice as long as its convolution, and that gradient is a convolution again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return a map of the same shape."""
        ctx.save_for_backward(x, weight)
        return by_library(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients towards map, kernels and bias."""
        x, weight = ctx.saved_tensors
        of_x = by_library(grad, weight.flip(2, 3))
        of_weight = gradient_by_library(grad, x, weight)
        # Summed last, what the convolutions have made of the gradient lies in memory and is not computed once more.
        of_bias = upcast(grad).sum((0, 1, 2)).to(grad.dtype) if ctx.needs_input_grad[2] else None
        return of_x, of_weight, of_bias


def by_library(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve a map B, H, W, C by kernels C, 1, k, k, keeping its size."""
    x = x.permute(0, 3, 1, 2)
    return F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2, groups=len(weight)).permute(0, 2, 3, 1)


def gradient_by_library(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the library's gradient of kernels C, 1, k, k from the output's and the map, both B, H, W, C."""
    grad, x = grad.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2)
    edge = [weight.shape[-1] // 2] * 2
    found: Tensor = torch.ops.aten.convolution_backward(
        grad, x, weight, None, [1, 1], edge, [1, 1], False, [0, 0], len(weight), [False, True, False]
    )[1]
    return found


REFERENCES = {"convolve": convolve_reference, "gradients": gradients_reference}
