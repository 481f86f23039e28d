"""GPU kernels in Triton: convolution of each channel by itself on maps B, H * W, C, its gradients; GELU and its own.

A program of the convolution holds some channels of some columns of a map and goes down its rows; a thread has a group
of `across` columns side by side. An input row is read once, its columns and those beside them, and serves all output
rows that it reaches, which are kept in registers; for the gradients of the kernels' cells the output's gradient is kept
so. Tuples stand for lists, which Triton does not have.
"""

from __future__ import annotations  # `tl` is not there yet when the kernels are defined

import functools
from typing import Any

from .language import triton_for

tl: Any = None  # triton.language, from the first use of a kernel on


@functools.cache
def kernel(name: str) -> Any:
    """Return a kernel, "convolve", "gradients", "activate" or "activate_back", ready to be compiled."""
    kernels = (_convolve, _gradients, _activate, _activate_back)
    return _triton().jit({function.__name__: function for function in kernels}[f"_{name}"])


@functools.cache
def _triton() -> Any:
    return triton_for(globals(), _tile, _slide, _read, _tail, _gelu)


def _tile(
    height: int,
    width: int,
    channels: tl.constexpr,
    size: tl.constexpr,
    rows: tl.constexpr,
    groups: tl.constexpr,
    across: tl.constexpr,
    wide: tl.constexpr,
    whole: tl.constexpr,
) -> tl.tuple:
    """Return what a program has: number of its images, first row, columns, channels, whether they are there.

    Behind them, for each column that a group reads, whether that is inside of the map.
    """
    strips = (width + groups * across - 1) // (groups * across)
    bands = (height + rows - 1) // rows
    program = tl.program_id(0)
    column = ((program % strips) * (groups * across) + across * tl.arange(0, groups))[:, None]
    first = (program // strips) % bands * rows
    channel = (tl.program_id(1) * wide + tl.arange(0, wide))[None, :]
    here = channel < channels if channels % wide else channel >= 0
    edge: tl.constexpr = size // 2
    inside = ()
    for j in tl.static_range(across + size - 1):
        at = column + (j - edge)
        inside += ((here if whole and j >= edge and j < across + edge else (at >= 0) & (at < width) & here),)
    return (program // strips // bands, first, column, channel, here) + inside


def _slide(sums: tl.tuple, values: tl.tuple, weights: tl.tuple, count: tl.constexpr, taps: tl.constexpr) -> tl.tuple:
    """Add to each of the sums the products of as many neighbouring values as there are weights."""
    more = ()
    for k in tl.static_range(count):
        sum = sums[k]
        for i in tl.static_range(taps):
            sum = tl.fma(values[k + i], weights[i], sum)
        more += (sum,)
    return more


def _read(
    at: tl.tensor,
    inside: tl.tuple,
    there: tl.tensor,
    first: tl.constexpr,
    count: tl.constexpr,
    channels: tl.constexpr,
) -> tl.tuple:
    """Read some columns of a row, nothing where they or the row lie outside of the map."""
    values = ()
    for j in tl.static_range(count):
        values += (tl.load(at + j * channels, mask=inside[first + j] & there, other=0.0).to(tl.float32),)
    return values


def _tail(x: tl.tensor) -> tl.tensor:
    """Return the normal distribution's share beyond |x|: Abramowitz and Stegun's formula 7.1.26, right to 3e-7."""
    t = 1.0 + 0.2316418883 * tl.abs(x)
    t = tl.rsqrt(t * t)  # one instruction; a division is seven
    tail = ((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368
    return (tail * t + 0.127414796) * t * tl.exp2(-0.7213475204 * x * x)


def _gelu(x: tl.tensor) -> tl.tensor:
    tail = x * _tail(x)
    return tl.where(x < 0, tail, x - tail)


def _convolve(
    x: tl.tensor,
    cells: tl.tensor,
    bias: tl.tensor,
    total: tl.tensor,
    active: tl.tensor,
    parts: tl.tensor,
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
    add_up: tl.constexpr,
) -> None:
    """Go down a band of rows; `sums` are the output rows that the input row reaches, the one that it ends first."""
    edge: tl.constexpr = size // 2
    tile = _tile(height, width, channels, size, rows, groups, across, wide, whole)
    image, first, column, channel, here = tile[:5]
    inside = tile[5:]
    none = 0 * column  # makes scalars vectors: the interpreter mixes no scalar with a mask
    program = tl.program_id(0)
    start = tl.zeros([groups, wide], tl.float32)
    if has_bias:
        start += tl.load(bias + none + channel, mask=here, other=0.0).to(tl.float32)
    kernel = ()
    cells += none + channel  # as the map is read, once for every column: another layout would be turned into the map's
    for cell in tl.static_range(size * size):
        value = tl.load(cells + cell * channels, mask=here, other=0.0).to(tl.float32)
        if residual and cell == size * size // 2:
            value += 1.0
        kernel = (value,) + kernel if turned else kernel + (value,)
    line = width * channels
    place = image.to(tl.int64) * height * width * channels + (first * width + column) * channels + channel
    x += place - edge * (line + channels)
    total += place
    active += place
    sums = (start,) * (size * across)
    added = tl.zeros([groups, wide], tl.float32)
    for above in tl.static_range(2 * edge):  # input rows that end no output row of the band
        row = first + (above - edge) + none
        there = (row >= 0) & (row < height)
        read = _read(x, inside, there, 0, across + size - 1, channels)
        begun = ()
        for k in tl.static_range(above + 1):
            weights = kernel[(above - k) * size : (above - k + 1) * size]
            begun += _slide(sums[k * across : (k + 1) * across], read, weights, across, size)
        sums = begun + sums[(above + 1) * across :]
        x += line
    for step in range(rows):
        below = first + edge + none + step < height
        values = _read(x, inside, below, 0, across + size - 1, channels)
        more = ()
        for k in tl.static_range(size):
            weights = kernel[(size - 1 - k) * size : (size - k) * size]
            more += _slide(sums[k * across : (k + 1) * across], values, weights, across, size)
        sums = more[across:] + (start,) * across
        written = first + none + step < height
        for p in tl.static_range(across):
            out: tl.tensor = more[p]
            mask = inside[p + edge] & written
            if keep:
                tl.store(total + p * channels, out.to(total.dtype.element_ty), mask=mask)
            if add_up:
                added += tl.where(mask, out, 0.0)
            if gelu:
                out = _gelu(out).to(active.dtype.element_ty)
                tl.store(active + p * channels, out, mask=mask)
        x += line
        total += line
        active += line
    if add_up:
        at = tl.program_id(1) * wide + tl.arange(0, wide)
        tl.store(parts + program * channels + at, tl.sum(added, 0), mask=at < channels)


def _gradients(
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
    tile = _tile(height, width, channels, size, rows, groups, across, wide, whole)
    turn, first, column, channel, _ = tile[:5]
    inside = tile[5:]
    none = 0 * column
    program = tl.program_id(0)
    line = width * channels
    place = (first * width + column) * channels + channel
    nothing = tl.zeros([groups, wide], tl.float32)
    found = (nothing,) * (size * size)
    added = nothing
    begin = turn * each
    for image in range(begin, tl.minimum(begin + each, images)):
        before = (image + tl.zeros([], tl.int64)) * height * line
        given = grad + (before + place)
        seen = x + (before + place - edge * (line + channels))
        held = (nothing,) * (size * across)
        for step in tl.range(0, rows + 2 * edge, loop_unroll_factor=edge):
            row = first + none + step
            reached = (none + step < rows) & (row < height)  # the newest of the output rows
            newest = _read(given, inside, reached, edge, across, channels)
            held = held[across:] + newest
            for p in tl.static_range(across):
                added += newest[p]
            values = _read(seen, inside, (row >= edge) & (row < height + edge), 0, across + size - 1, channels)
            more = ()
            for i in tl.static_range(size):
                weights = held[(size - 1 - i) * across : (size - i) * across]
                more += _slide(found[i * size : (i + 1) * size], values, weights, size, across)
            found = more
            given += line
            seen += line
    channel = tl.program_id(1) * wide + tl.arange(0, wide)
    cells: tl.constexpr = size * size
    sums += program * (cells + 1) * channels
    for cell in tl.static_range(cells):
        tl.store(sums + channel * cells + cell, tl.sum(found[cell], 0), mask=channel < channels)
    tl.store(sums + cells * channels + channel, tl.sum(added, 0), mask=channel < channels)


def _activate(x: tl.tensor, out: tl.tensor, count: int, values: tl.constexpr) -> None:
    """Apply GELU."""
    at = tl.program_id(0).to(tl.int64) * values + tl.arange(0, values)
    value = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    tl.store(out + at, _gelu(value).to(out.dtype.element_ty), mask=at < count)


def _activate_back(grad: tl.tensor, x: tl.tensor, out: tl.tensor, count: int, values: tl.constexpr) -> None:
    """Multiply the gradient of GELU(x) by its slope."""
    at = tl.program_id(0).to(tl.int64) * values + tl.arange(0, values)
    value = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    given = tl.load(grad + at, mask=at < count, other=0.0).to(tl.float32)
    tail = _tail(value)
    slope = tl.where(value < 0, tail, 1.0 - tail) + 0.3989422804 * value * tl.exp2(-0.7213475204 * value * value)
    tl.store(out + at, (given * slope).to(out.dtype.element_ty), mask=at < count)
