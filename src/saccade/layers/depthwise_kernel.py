"""A GPU kernel in Triton: convolution of each channel by itself on maps B, H * W, C.

A program holds some columns and channels of a map and goes down its rows; an input row is read once for every column of
the kernel and serves all output rows that it reaches, which are kept in registers. Tuples stand for lists, which Triton
does not have.
"""

from __future__ import annotations  # `tl` is not there yet when the kernels are defined

import functools
import importlib
from typing import Any

tl: Any = None  # triton.language, from the first use of a kernel on


@functools.cache
def kernel() -> Any:
    """Return the kernel, ready to be compiled."""
    global tl
    triton = importlib.import_module("triton")  # a plain import would ask type checkers for its stubs
    tl = triton.language
    return triton.jit(_convolve)


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
