"""GPU kernels in Triton: convolution of each channel by itself on maps B, H * W, C, and the gradient of GELU behind it.

A program of the convolution holds some columns and channels of a map and goes down its rows; an input row is read once
for every column of the kernel and serves all output rows that it reaches, which are kept in registers. Tuples stand for
lists, which Triton does not have.
"""

from __future__ import annotations  # `tl` is not there yet when the kernels are defined

import functools
import importlib
from typing import Any

tl: Any = None  # triton.language, from the first use of a kernel on


@functools.cache
def kernel(name: str) -> Any:
    """Return a kernel, "convolve" or "gelu_gradient", ready to be compiled."""
    global tl
    triton = importlib.import_module("triton")  # a plain import would ask type checkers for its stubs
    tl = triton.language
    return triton.jit({"convolve": _convolve, "gelu_gradient": _gelu_gradient}[name])


def _convolve(
    x: tl.tensor,
    cells: tl.tensor,
    bias: tl.tensor,
    total: tl.tensor,
    active: tl.tensor,
    height: int,
    width: int,
    channels: tl.constexpr,
    size: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    wide: tl.constexpr,
    turned: tl.constexpr,
    has_bias: tl.constexpr,
    residual: tl.constexpr,
    gelu: tl.constexpr,
    keep: tl.constexpr,
) -> None:
    """Go down a band of rows; `sums` are the output rows that the input row reaches, the one that it ends first."""
    edge: tl.constexpr = size // 2
    strips = (width + columns - 1) // columns
    bands = (height + rows - 1) // rows
    program = tl.program_id(0)
    column = ((program % strips) * columns + tl.arange(0, columns))[:, None]
    none = 0 * column  # makes scalars vectors: the interpreter mixes no scalar with a mask
    first = (program // strips) % bands * rows
    image = (program // strips // bands).to(tl.int64) * height * width * channels
    channel = (tl.program_id(1) * wide + tl.arange(0, wide))[None, :]
    here = channel < channels if channels % wide else channel >= 0
    place = column * channels + channel
    x += image
    start = tl.zeros([columns, wide], tl.float32)
    if has_bias:
        start += tl.load(bias + none + channel, mask=here, other=0.0).to(tl.float32)
    kernel = ()
    for cell in tl.static_range(size * size):
        # Read as the map is, once for every column: another layout would be turned into the map's in shared memory.
        value = tl.load(cells + cell * channels + none + channel, mask=here, other=0.0).to(tl.float32)
        if residual and cell == size * size // 2:
            value += 1.0
        kernel = (value,) + kernel if turned else kernel + (value,)
    sums = (start,) * size
    for step in tl.range(0, rows + 2 * edge, loop_unroll_factor=rows + 2 * edge):
        row = first + step - edge
        there = (row + none >= 0) & (row + none < height) & here
        for j in tl.static_range(size):
            at = column + (j - edge)
            mask = (at >= 0) & (at < width) & there
            value = tl.load(x + row * width * channels + place + (j - edge) * channels, mask=mask, other=0.0)
            value = value.to(tl.float32)
            more = ()
            for k in tl.static_range(size):
                more = more + (sums[k] + value * kernel[(size - 1 - k) * size + j],)
            sums = more
        done = row - edge
        mask = (column < width) & (step + none >= 2 * edge) & (done + none < height) & here
        to = image + done * width * channels + place
        out = sums[0]
        if keep:
            tl.store(total + to, out.to(total.dtype.element_ty), mask=mask)
        if gelu:
            # The normal distribution's share beyond |x|: Abramowitz and Stegun's formula 7.1.26, right to 3e-7.
            t = 1.0 + 0.2316418883 * tl.abs(out)
            t = tl.rsqrt(t * t)  # one instruction; a division is seven
            tail = ((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368
            tail = (tail * t + 0.127414796) * t * tl.exp2(-0.7213475204 * out * out) * out
            tl.store(active + to, tl.where(out < 0, tail, out - tail).to(active.dtype.element_ty), mask=mask)
        sums = sums[1:] + (start,)


def _gelu_gradient(
    grad: tl.tensor,
    x: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    count: int,
    channels: tl.constexpr,
    rows: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """Multiply the gradient of GELU(x), count x channels, by its slope; sum what comes out over a program's rows."""
    channel = tl.program_id(1) * wide + tl.arange(0, wide)
    row = tl.arange(0, tall)[:, None]
    first = tl.program_id(0).to(tl.int64) * rows
    place = first * channels
    total = tl.zeros([tall, wide], tl.float32)
    for step in range(0, rows, tall):
        at = (step + row) * channels + channel[None, :]
        mask = (first + step + row < count) & (channel[None, :] < channels)
        value = tl.load(x + place + at, mask=mask, other=0.0).to(tl.float32)
        made = tl.load(grad + place + at, mask=mask, other=0.0).to(tl.float32)
        # The normal distribution's share beyond |x|, as above.
        t = 1.0 + 0.2316418883 * tl.abs(value)
        t = tl.rsqrt(t * t)
        bell = tl.exp2(-0.7213475204 * value * value)
        tail = ((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368
        tail = (tail * t + 0.127414796) * t * bell
        made *= tl.where(value < 0, tail, 1.0 - tail) + 0.3989422804 * value * bell
        made = made.to(out.dtype.element_ty)
        tl.store(out + place + at, made, mask=mask)
        total += made.to(tl.float32)
    tl.store(sums + tl.program_id(0) * channels + channel, tl.sum(total, 0), mask=channel < channels)
