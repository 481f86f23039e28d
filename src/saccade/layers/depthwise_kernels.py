"""Two GPU kernels in Triton: convolution of each channel by itself on maps B, H * W, C, and its gradients.

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
def kernels() -> tuple[Any, Any]:
    """Return both kernels, ready to be compiled."""
    global tl
    triton = importlib.import_module("triton")  # a plain import would ask type checkers for its stubs
    tl = triton.language
    return triton.jit(_convolve), triton.jit(_gradients)


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
            t = 1.0 / (1.0 + 0.2316418883 * tl.abs(out))
            tail = ((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368
            tail = (tail * t + 0.127414796) * t * tl.exp2(-0.7213475204 * out * out) * out
            tl.store(active + to, tl.where(out < 0, tail, out - tail).to(active.dtype.element_ty), mask=mask)
        sums = sums[1:] + (start,)


def _gradients(
    grad: tl.tensor,
    x: tl.tensor,
    cells: tl.tensor,
    of_x: tl.tensor,
    parts: tl.tensor,
    count: int,
    height: int,
    width: int,
    channels: tl.constexpr,
    size: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    wide: tl.constexpr,
    repeats: tl.constexpr,
    residual: tl.constexpr,
) -> None:
    """Go down bands of rows of the gradient; `sums` are rows of the map's gradient, `maps` its own."""
    edge: tl.constexpr = size // 2
    last: tl.constexpr = size - 1
    strips = (width + columns - 1) // columns
    bands = (height + rows - 1) // rows
    program = tl.program_id(0)
    column = ((program % strips) * columns + tl.arange(0, columns))[:, None]
    none = 0 * column
    channel = (tl.program_id(1) * wide + tl.arange(0, wide))[None, :]
    here = channel < channels if channels % wide else channel >= 0
    place = column * channels + channel
    zero = tl.zeros([columns, wide], tl.float32)
    kernel = ()
    for cell in tl.static_range(size * size):
        value = tl.load(cells + cell * channels + none + channel, mask=here, other=0.0).to(tl.float32)
        if residual and cell == size * size // 2:
            value += 1.0
        kernel = kernel + (value,)
    of_kernel = (zero,) * (size * size)
    of_bias = zero
    for repeat in range(repeats):
        band = program // strips * repeats + repeat
        first = band % bands * rows
        image = (band // bands).to(tl.int64) * height * width * channels
        end = tl.where(band < count, height, 0)
        sums = (zero,) * size
        maps = (zero,) * last
        for step in tl.range(0, rows + 2 * edge, loop_unroll_factor=rows + 2 * edge):
            row = first + step - edge
            mask = (column < width) & (step + none < rows) & (row + edge + none < end) & here
            value = tl.load(x + image + (row + edge) * width * channels + place, mask=mask, other=0.0)
            maps = maps + (value.to(tl.float32),)  # zero beyond this band
            there = (row + none >= 0) & (row + none < end) & here
            for j in tl.static_range(size):
                at = column + (j - edge)
                mask = (at >= 0) & (at < width) & there
                value = tl.load(
                    grad + image + row * width * channels + place + (j - edge) * channels, mask=mask, other=0.0
                )
                value = value.to(tl.float32)
                if j == edge:
                    of_bias += tl.where((step + none >= edge) & (step + none < rows + edge), value, 0.0)
                more = ()
                products = ()
                for k in tl.static_range(size):
                    more = more + (sums[k] + value * kernel[k * size + last - j],)
                    for i in tl.static_range(size):
                        product = of_kernel[k * size + i]
                        if i == last - j:
                            product += value * maps[k]
                        products = products + (product,)
                of_kernel = products
                sums = more
            done = row - edge
            mask = (column < width) & (step + none >= 2 * edge) & (done + none < end) & here
            to = of_x + image + done * width * channels + place
            tl.store(to, sums[0].to(of_x.dtype.element_ty), mask=mask)
            sums = sums[1:] + (zero,)
            maps = maps[1:]
    line = tl.program_id(1) * wide + tl.arange(0, wide)
    to = parts + program.to(tl.int64) * (size * size + 1) * channels + line
    for cell in tl.static_range(size * size):
        tl.store(to + cell * channels, tl.sum(of_kernel[cell], 0), mask=line < channels)
    tl.store(to + size * size * channels, tl.sum(of_bias, 0), mask=line < channels)
