"""GPU kernels: branches added to a map and the layer norm of the sum, and the way back."""

from __future__ import annotations  # `tl` is not there yet when the kernels are defined

import functools
from typing import Any

from .language import triton_for

tl: Any = None  # triton.language, from the first use of a kernel on


@functools.cache
def kernel(name: str) -> Any:
    """Return a kernel, "join" or "join_back", ready to be compiled."""
    return triton_for(globals()).jit({"join": _join, "join_back": _join_back}[name])


def _join(
    x: tl.tensor,
    branch: tl.tensor,
    second: tl.tensor,
    total: tl.tensor,
    normed: tl.tensor,
    middle: tl.tensor,
    inverse: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    count: int,
    channels: tl.constexpr,
    rows: tl.constexpr,
    wide: tl.constexpr,
    has_branch: tl.constexpr,
    has_second: tl.constexpr,
    eps: tl.constexpr,
) -> None:
    place, column = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, wide)
    inside = column < channels
    there = (place < count)[:, None] & inside[None, :]
    at = place.to(tl.int64)[:, None] * channels + column[None, :]
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if has_branch:
        value += tl.load(branch + at, mask=there, other=0.0).to(tl.float32)
        if has_second:
            value += tl.load(second + at, mask=there, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=there)
        value = rounded.to(tl.float32)
    mean = tl.sum(value, 1) / channels
    value = tl.where(there, value - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 1) / channels + eps)
    slope = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    start = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    found = value * scale[:, None] * slope[None, :] + start[None, :]
    tl.store(normed + at, found.to(normed.dtype.element_ty), mask=there)
    tl.store(middle + place, mean, mask=place < count)
    tl.store(inverse + place, scale, mask=place < count)


def _join_back(
    of_normed: tl.tensor,
    more: tl.tensor,
    of_total: tl.tensor,
    total: tl.tensor,
    middle: tl.tensor,
    inverse: tl.tensor,
    weight: tl.tensor,
    found: tl.tensor,
    parts: tl.tensor,
    count: int,
    programs: int,
    tiles: int,
    channels: tl.constexpr,
    rows: tl.constexpr,
    wide: tl.constexpr,
    has_more: tl.constexpr,
) -> None:
    """Go through tiles as many apart as there are programs, adding up the rows of a tile each for itself."""
    column = tl.arange(0, wide)
    inside = column < channels
    slope = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    nothing = tl.zeros([rows, wide], tl.float32)
    of_weight, of_bias, of_before, of_after = nothing, nothing, nothing, nothing
    for tile in range(tl.program_id(0), tiles, programs):
        place = tile * rows + tl.arange(0, rows)
        there = (place < count)[:, None] & inside[None, :]
        at = place.to(tl.int64)[:, None] * channels + column[None, :]
        given = tl.load(of_normed + at, mask=there, other=0.0).to(tl.float32)
        if has_more:
            given += tl.load(more + at, mask=there, other=0.0).to(tl.float32)
        passed = tl.load(of_total + at, mask=there, other=0.0).to(tl.float32)
        value = tl.load(total + at, mask=there, other=0.0).to(tl.float32)
        mean = tl.load(middle + place, mask=place < count, other=0.0)
        scale = tl.load(inverse + place, mask=place < count, other=0.0)
        value = tl.where(there, (value - mean[:, None]) * scale[:, None], 0.0)
        of_weight += given * value
        of_bias += given
        of_after += passed
        given *= slope
        common = tl.sum(given, 1) / channels
        along = tl.sum(given * value, 1) / channels
        given = passed + (given - common[:, None] - value * along[:, None]) * scale[:, None]
        of_before += tl.where(there, given, 0.0)
        tl.store(found + at, given.to(found.dtype.element_ty), mask=there)
    parts += tl.program_id(0) * (4 * channels) + column
    tl.store(parts, tl.sum(of_weight, 0), mask=inside)
    tl.store(parts + channels, tl.sum(of_bias, 0), mask=inside)
    tl.store(parts + 2 * channels, tl.sum(of_before, 0), mask=inside)
    tl.store(parts + 3 * channels, tl.sum(of_after, 0), mask=inside)
