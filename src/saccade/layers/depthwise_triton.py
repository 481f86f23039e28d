"""Convolution of each channel by itself on maps B, H, W, C, and its gradients, as GPU kernels in Triton.

A library's kernel reads the map once for every cell of the convolution's; it is bound by loads, not by memory. Here an
input row is read once for every column of the kernel and serves all output rows that it reaches, which are kept in
registers. Which shapes the kernels take is chosen by measurement: `CHOSEN`, and none without one.
"""

from __future__ import annotations  # `tl` is not there yet when the kernels are defined

import functools
import importlib.util
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .exporting import is_exporting
from .numerics import in_half_precision

INSTALLED = importlib.util.find_spec("triton") is not None
SIZES = (3, 5)  # sides of kernels that the code is written out for
FORCE = "SACCADE_DEPTHWISE"  # set to "triton", the kernels take every shape that they can
tl: Any = None  # triton.language, from the first use of a kernel on


@dataclass(frozen=True)
class Tiles:
    """How a kernel cuts its work.

    Args:
        rows: of the map a program goes through.
        columns: of the map a program holds at a time; not used by the kernel's gradient.
        channels: a program holds.
        warps: of a program.
    """

    rows: int
    columns: int
    channels: int
    warps: int


@dataclass(frozen=True)
class Choice:
    """Tiles of the three kernels: forward, gradient of the map, gradient of the convolution's kernel."""

    forward: Tiles
    map: Tiles
    kernel: Tiles


# By the side of the kernel and the width of the map: where ours took less time than cuDNN's, bfloat16 on an H200.
CHOSEN: dict[tuple[int, int], Choice] = {}


def usual(width: int, channels: int) -> Choice:
    """Return tiles for a shape that nobody has measured."""
    columns = 8 if width % 16 and width % 16 <= 8 else 16
    wide = 64 if channels % 64 == 0 else 32
    forward = Tiles(rows=14, columns=columns, channels=wide, warps=max(1, columns * wide // 256))
    return Choice(forward, forward, Tiles(rows=16, columns=1, channels=wide, warps=2))


def choose(x: Tensor, size: int) -> Choice | None:
    """Return tiles for a map B, H, W, C and a kernel's side, None where the library's convolution is to be taken."""
    if not INSTALLED or size not in SIZES or x.dtype == torch.float64 or is_exporting():
        return None
    if not (x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"):
        return None
    if os.environ.get(FORCE) == "triton":
        return usual(x.shape[2], x.shape[3])
    if not x.is_cuda or not in_half_precision(x):
        return None
    return CHOSEN.get((size, x.shape[2]))


@torch.library.custom_op("saccade::depthwise", mutates_args=())
def depthwise(x: Tensor, weight: Tensor, bias: Tensor | None, turned: bool) -> Tensor:
    """Convolve a map B, H, W, C by kernels C, 1, k, k, keeping its size.

    Args:
        x: the map.
        weight: the kernels.
        bias: of each channel, or None.
        turned: by half a turn, which gives the gradient of the map from that of the output.
    """
    choice = choose(x, weight.shape[-1]) or usual(x.shape[2], x.shape[3])
    return run_convolve(x, weight, bias, choice.map if turned else choice.forward, turned=turned)


@depthwise.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, turned: bool) -> Tensor:  # noqa: ARG001
    return x.new_empty(x.shape)


@torch.library.custom_op("saccade::depthwise_kernel_gradient", mutates_args=())
def kernel_gradient(x: Tensor, grad: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the gradients of the kernels, C, 1, size, size, and of the bias, C, in float32.

    Args:
        x: the map, B, H, W, C.
        grad: the output's gradient, of the same shape.
        size: the kernel's side.
    """
    choice = choose(x, size) or usual(x.shape[2], x.shape[3])
    return run_kernel_gradient(x, grad, size, choice.kernel)


@kernel_gradient.register_fake
def _(x: Tensor, grad: Tensor, size: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    channels = x.shape[-1]
    return x.new_empty(channels, 1, size, size, dtype=torch.float32), x.new_empty(channels, dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, bool], output: Tensor) -> None:  # noqa: ARG001
    x, weight, ctx.bias, _ = inputs[0], inputs[1], inputs[2] is not None, inputs[3]
    ctx.save_for_backward(x, weight)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
    x, weight = ctx.saved_tensors
    of_x = depthwise(grad, weight, None, True) if ctx.needs_input_grad[0] else None
    of_weight = of_bias = None
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        of_weight, of_bias = kernel_gradient(x, grad, weight.shape[-1])
        of_weight, of_bias = of_weight.to(weight.dtype), of_bias.to(weight.dtype)
    return of_x, of_weight, of_bias if ctx.bias else None, None


depthwise.register_autograd(_gradients, setup_context=_keep)


def run_convolve(x: Tensor, weight: Tensor, bias: Tensor | None, tiles: Tiles, *, turned: bool = False) -> Tensor:
    """Convolve with the given tiles."""
    x = x.contiguous()
    batch, height, width, channels = x.shape
    size = weight.shape[-1]
    cells = (weight.flip(2, 3) if turned else weight).reshape(channels, -1).t().float().contiguous()  # size * size, C
    out = torch.empty_like(x)
    grid = (batch * -(-height // tiles.rows) * -(-width // tiles.columns), -(-channels // tiles.channels))
    with torch.cuda.device_of(x):
        _kernels()[0][grid](
            x,
            cells,
            cells if bias is None else bias.float().contiguous(),
            out,
            height,
            width,
            channels,
            size,
            tiles.rows,
            tiles.columns,
            tiles.channels,
            bias is not None,
            num_warps=tiles.warps,
        )
    return out


def run_kernel_gradient(x: Tensor, grad: Tensor, size: int, tiles: Tiles) -> tuple[Tensor, Tensor]:
    """Return the gradients of kernels and bias with the given tiles."""
    x, grad = x.contiguous(), grad.contiguous()
    batch, height, width, channels = x.shape
    parts = -(-batch * height // tiles.rows)
    out = x.new_empty(parts, size * size + 1, channels, dtype=torch.float32)
    with torch.cuda.device_of(x):
        _kernels()[1][(parts, -(-channels // tiles.channels))](
            x,
            grad,
            out,
            batch * height,
            height,
            width,
            channels,
            size,
            4 if size == 3 else 8,
            tiles.rows,
            tiles.channels,
            num_warps=tiles.warps,
        )
    total = out.sum(0)
    return total[:-1].t().reshape(channels, 1, size, size).contiguous(), total[-1].clone()


@functools.cache
def _kernels() -> tuple[Any, Any]:
    global tl
    triton = importlib.import_module("triton")  # a plain import would ask type checkers for its stubs
    tl = triton.language
    return triton.jit(_convolve), triton.jit(_sum_products)


def _convolve(
    x: tl.tensor,
    cells: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    height: int,
    width: int,
    channels: tl.constexpr,
    size: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    wide: tl.constexpr,
    has_bias: tl.constexpr,
) -> None:
    """Go down the rows of a strip of columns; `a0` is the output row whose last input row is being read."""
    edge: tl.constexpr = size // 2
    last: tl.constexpr = (size - 1) * size
    strips = (width + columns - 1) // columns
    parts = (height + rows - 1) // rows
    program = tl.program_id(0)
    column = (program % strips) * columns + tl.arange(0, columns)
    first = (program // strips) % parts * rows
    image = (program // strips // parts).to(tl.int64)
    channel = tl.program_id(1) * wide + tl.arange(0, wide)
    inside = channel < channels
    x += image * height * width * channels
    out += image * height * width * channels
    zero = tl.zeros([columns, wide], tl.float32)
    if has_bias:
        zero += tl.load(bias + channel, mask=inside, other=0.0)[None, :]
    a0, a1, a2, a3, a4 = zero, zero, zero, zero, zero
    for step in range(rows + 2 * edge):
        row = first + step - edge + 0 * column  # a vector: the interpreter mixes no scalar with a mask
        there = (row >= 0) & (row < height)
        for j in tl.static_range(size):
            at = column + j - edge
            mask = ((at >= 0) & (at < width) & there)[:, None] & inside[None, :]
            value = tl.load(x + (row * width + at)[:, None] * channels + channel[None, :], mask=mask, other=0.0)
            value = value.to(tl.float32)
            cell = cells + j * channels + channel
            a0 += value * tl.load(cell + last * channels, mask=inside, other=0.0)[None, :]
            a1 += value * tl.load(cell + (last - size) * channels, mask=inside, other=0.0)[None, :]
            a2 += value * tl.load(cell + (last - 2 * size) * channels, mask=inside, other=0.0)[None, :]
            if size == 5:
                a3 += value * tl.load(cell + size * channels, mask=inside, other=0.0)[None, :]
                a4 += value * tl.load(cell, mask=inside, other=0.0)[None, :]
        done = row - edge
        mask = ((column < width) & (done >= first) & (done < height))[:, None] & inside[None, :]
        place = out + (done * width + column)[:, None] * channels + channel[None, :]
        tl.store(place, a0.to(out.dtype.element_ty), mask=mask)
        a0, a1 = a1, a2
        if size == 5:
            a2, a3, a4 = a3, a4, zero
        else:
            a2 = zero


def _sum_products(
    x: tl.tensor,
    grad: tl.tensor,
    out: tl.tensor,
    all_rows: int,
    height: int,
    width: int,
    channels: tl.constexpr,
    size: tl.constexpr,
    padded: tl.constexpr,
    rows: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """Go along rows of the gradient; `v0` to `v3` and `new` are columns around the place, of `size` rows each."""
    edge: tl.constexpr = size // 2
    part = tl.program_id(0)
    channel = tl.program_id(1) * wide + tl.arange(0, wide)
    inside = channel < channels
    i = tl.arange(0, padded)
    zero = tl.zeros([padded, wide], tl.float32)
    a0, a1, a2, a3, a4 = zero, zero, zero, zero, zero
    total = tl.zeros([wide], tl.float32)
    for step in range(rows):
        row = part * rows + step
        at = row % height + i - edge
        mask = ((i < size) & (at >= 0) & (at < height) & (row + 0 * i < all_rows))[:, None] & inside[None, :]
        there = inside & (row + 0 * channel < all_rows)
        start = x + ((row - row % height + at).to(tl.int64) * width * channels)[:, None] + channel[None, :]
        slope = grad + row.to(tl.int64) * width * channels + channel
        # before the first place: nothing to the left of it, then the columns that are there
        v0, v1, v2, v3 = zero, zero, zero, zero
        if size == 5:
            v2 = tl.load(start, mask=mask, other=0.0).to(tl.float32)
            v3 = tl.load(start + channels, mask=mask & (1 + 0 * i < width)[:, None], other=0.0).to(tl.float32)
        else:
            v1 = tl.load(start, mask=mask, other=0.0).to(tl.float32)
        for w in range(width):
            more = mask & (w + edge + 0 * i < width)[:, None]
            new = tl.load(start + (w + edge) * channels, mask=more, other=0.0).to(tl.float32)
            g = tl.load(slope + w * channels, mask=there, other=0.0).to(tl.float32)
            total += g
            g = g[None, :]
            a0 += v0 * g
            a1 += v1 * g
            if size == 5:
                a2 += v2 * g
                a3 += v3 * g
                a4 += new * g
                v0, v1, v2, v3 = v1, v2, v3, new
            else:
                a2 += new * g
                v0, v1 = v1, new
    out += part.to(tl.int64) * (size * size + 1) * channels
    place = out + (i * size)[:, None] * channels + channel[None, :]
    mask = (i < size)[:, None] & inside[None, :]
    tl.store(place, a0, mask=mask)
    tl.store(place + channels, a1, mask=mask)
    tl.store(place + 2 * channels, a2, mask=mask)
    if size == 5:
        tl.store(place + 3 * channels, a3, mask=mask)
        tl.store(place + 4 * channels, a4, mask=mask)
    tl.store(out + size * size * channels + channel, total, mask=inside)
