"""GPU kernels in Triton: convolution of each channel by itself on maps B, H * W, C, its gradients, and that of GELU.

A program of the convolution holds some channels of some columns of a map and goes down its rows; a thread has a group
of `across` columns side by side. An input row is read once, its columns and those beside them, and serves all output
rows that it reaches, which are kept in registers; for the gradients of the kernels' cells the output's gradient is kept
so. Tuples stand for lists, which Triton does not have.
"""

from __future__ import annotations  # `tl` is not there yet when the kernels are defined

import functools
import importlib
from typing import Any

tl: Any = None  # triton.language, from the first use of a kernel on


@functools.cache
def kernel(name: str) -> Any:
    """Return a kernel, "convolve", "cell_gradients" or "gelu_gradient", ready to be compiled."""
    global tl
    triton = importlib.import_module("triton")  # a plain import would ask type checkers for its stubs
    tl = triton.language
    kernels = {"convolve": _convolve, "cell_gradients": _cell_gradients, "gelu_gradient": _gelu_gradient}
    return triton.jit(kernels[name])


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
    groups: tl.constexpr,
    across: tl.constexpr,
    wide: tl.constexpr,
    whole: tl.constexpr,
    turned: tl.constexpr,
    has_bias: tl.constexpr,
    residual: tl.constexpr,
    gelu: tl.constexpr,
    keep: tl.constexpr,
) -> None:
    """Go down a band of rows; `sums` are the output rows that the input row reaches, the one that it ends first."""
    edge: tl.constexpr = size // 2
    strips = (width + groups * across - 1) // (groups * across)
    bands = (height + rows - 1) // rows
    program = tl.program_id(0)
    column = ((program % strips) * (groups * across) + across * tl.arange(0, groups))[:, None]
    none = 0 * column  # makes scalars vectors: the interpreter mixes no scalar with a mask
    first = (program // strips) % bands * rows
    image = (program // strips // bands).to(tl.int64) * height * width * channels
    channel = (tl.program_id(1) * wide + tl.arange(0, wide))[None, :]
    here = channel < channels if channels % wide else channel >= 0
    inside = ()
    for j in tl.static_range(across + size - 1):
        at = column + (j - edge)
        inside = inside + ((here if whole and j >= edge and j < across + edge else (at >= 0) & (at < width) & here),)
    x += image
    total += image
    active += image
    start = tl.zeros([groups, wide], tl.float32)
    if has_bias:
        start += tl.load(bias + none + channel, mask=here, other=0.0).to(tl.float32)
    kernel = ()
    for cell in tl.static_range(size * size):
        # Read as the map is, once for every column: another layout would be turned into the map's in shared memory.
        value = tl.load(cells + cell * channels + none + channel, mask=here, other=0.0).to(tl.float32)
        if residual and cell == size * size // 2:
            value += 1.0
        kernel = (value,) + kernel if turned else kernel + (value,)
    place = (first - edge) * width * channels + column * channels + channel
    sums = (start,) * (size * across)
    for step in tl.static_range(2 * edge):  # input rows that end no output row of the band
        row = first + step - edge + none
        for j in tl.static_range(across + size - 1):
            mask = inside[j] & (row >= 0) & (row < height)
            value = tl.load(x + place + (j - edge) * channels, mask=mask, other=0.0).to(tl.float32)
            more = ()
            for k in tl.static_range(size):
                for p in tl.static_range(across):
                    if k <= step and j >= p and j < p + size:
                        more += (tl.fma(value, kernel[(step - k) * size + j - p], sums[k * across + p]),)
                    else:
                        more += (sums[k * across + p],)
            sums = more
        place += width * channels
    for step in range(rows):
        row = first + step + edge + none
        for j in tl.static_range(across + size - 1):
            mask = inside[j] & (row < height)
            value = tl.load(x + place + (j - edge) * channels, mask=mask, other=0.0).to(tl.float32)
            more = ()
            for k in tl.static_range(size):
                for p in tl.static_range(across):
                    if j >= p and j < p + size:
                        more += (tl.fma(value, kernel[(size - 1 - k) * size + j - p], sums[k * across + p]),)
                    else:
                        more += (sums[k * across + p],)
            sums = more
        for p in tl.static_range(across):
            mask = inside[p + edge] & (row - edge < height)
            to = place + (p - edge * width) * channels
            out = sums[p]
            if keep:
                tl.store(total + to, out.to(total.dtype.element_ty), mask=mask)
            if gelu:
                # The normal distribution's share beyond |x|: Abramowitz and Stegun's formula 7.1.26, right to 3e-7.
                t = 1.0 + 0.2316418883 * tl.abs(out)
                t = tl.rsqrt(t * t)  # one instruction; a division is seven
                tail = ((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368
                tail = (tail * t + 0.127414796) * t * tl.exp2(-0.7213475204 * out * out) * out
                tl.store(active + to, tl.where(out < 0, tail, out - tail).to(active.dtype.element_ty), mask=mask)
        sums = sums[across:] + (start,) * across
        place += width * channels


def _cell_gradients(
    x: tl.tensor,
    grad: tl.tensor,
    sums: tl.tensor,
    images: int,
    each: int,
    height: int,
    width: int,
    channels: tl.constexpr,
    size: tl.constexpr,
    rows: tl.constexpr,
    groups: tl.constexpr,
    across: tl.constexpr,
    wide: tl.constexpr,
    whole: tl.constexpr,
) -> None:
    """Go down a band of rows of `each` images; `held` is the gradient of output rows that the input row reaches."""
    edge: tl.constexpr = size // 2
    strips = (width + groups * across - 1) // (groups * across)
    bands = (height + rows - 1) // rows
    program = tl.program_id(0)
    column = ((program % strips) * (groups * across) + across * tl.arange(0, groups))[:, None]
    none = 0 * column
    first = (program // strips) % bands * rows
    channel = (tl.program_id(1) * wide + tl.arange(0, wide))[None, :]
    here = channel < channels if channels % wide else channel >= 0
    inside = ()
    for j in tl.static_range(across + size - 1):
        at = column + (j - edge)
        inside = inside + ((here if whole and j >= edge and j < across + edge else (at >= 0) & (at < width) & here),)
    nothing = tl.zeros([groups, wide], tl.float32)
    found = (nothing,) * (size * size)
    total = nothing
    begin = program // strips // bands * each
    for image in range(begin, tl.minimum(begin + each, images)):
        before = (image + tl.zeros([], tl.int64)) * height * width * channels
        place = (first - edge) * width * channels + column * channels + channel
        held = (nothing,) * (size * across)
        for step in tl.range(0, rows + 2 * edge, loop_unroll_factor=edge):
            row = first + step - edge + none
            reached = (step + none < rows) & (row + edge < height)  # the newest of the output rows
            held = held[across:]
            for p in tl.static_range(across):
                mask = inside[p + edge] & reached
                value = tl.load(grad + before + place + (p + edge * width) * channels, mask=mask, other=0.0)
                value = value.to(tl.float32)
                held += (value,)
                total += value
            for j in tl.static_range(across + size - 1):
                mask = inside[j] & (row >= 0) & (row < height)
                value = tl.load(x + before + place + (j - edge) * channels, mask=mask, other=0.0).to(tl.float32)
                more = ()
                for cell in tl.static_range(size * size):
                    if j >= cell % size and j < cell % size + across:
                        beside = held[(size - 1 - cell // size) * across + j - cell % size]
                        more += (tl.fma(value, beside, found[cell]),)
                    else:
                        more += (found[cell],)
                found = more
            place += width * channels
    channel = tl.program_id(1) * wide + tl.arange(0, wide)
    to = sums + program * (size * size + 1) * channels + channel
    for cell in tl.static_range(size * size):
        tl.store(to + cell * channels, tl.sum(found[cell], 0), mask=channel < channels)
    tl.store(to + size * size * channels, tl.sum(total, 0), mask=channel < channels)


def _gelu_gradient(grad: tl.tensor, x: tl.tensor, out: tl.tensor, count: int, values: tl.constexpr) -> None:
    """Multiply the gradient of GELU(x) by its slope."""
    at = tl.program_id(0).to(tl.int64) * values + tl.arange(0, values)
    value = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    made = tl.load(grad + at, mask=at < count, other=0.0).to(tl.float32)
    # The normal distribution's share beyond |x|, as above.
    t = 1.0 + 0.2316418883 * tl.abs(value)
    t = tl.rsqrt(t * t)
    bell = tl.exp2(-0.7213475204 * value * value)
    tail = ((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368
    tail = (tail * t + 0.127414796) * t * bell
    made *= tl.where(value < 0, tail, 1.0 - tail) + 0.3989422804 * value * bell
    tl.store(out + at, made.to(out.dtype.element_ty), mask=at < count)
