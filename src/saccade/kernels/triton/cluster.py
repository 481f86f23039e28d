"""The GPU kernels of `ops/cluster.py`: a program holds all slots of an image and goes through its positions."""

from __future__ import annotations  # `tl` is not there yet when the kernels are defined

import functools
from typing import Any

from .language import triton_for

tl: Any = None  # triton.language, from the first use of a kernel on


@functools.cache
def kernel(name: str) -> Any:
    """Return a kernel, "gather" or "scatter" or one of these and "_back", ready to be compiled."""
    kernels = (_gather, _gather_back, _scatter, _scatter_back)
    return _triton().jit({function.__name__: function for function in kernels}[f"_{name}"])


@functools.cache
def _triton() -> Any:
    return triton_for(globals(), _read, _write, _inverse_length, _weigh)


def _read(
    at: tl.tensor, first: int, count: tl.constexpr, across: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr
) -> tl.tensor:
    """Return a tile of a matrix count, across, from a row on, with zeros beyond its sides."""
    row, column = first + tl.arange(0, tall)[:, None], tl.arange(0, wide)[None, :]
    return tl.load(at + row * across + column, mask=(row < count) & (column < across), other=0.0)


def _write(
    at: tl.tensor,
    tile: tl.tensor,
    first: int,
    count: tl.constexpr,
    across: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """Write a tile into a matrix count, across, from a row on."""
    row, column = first + tl.arange(0, tall)[:, None], tl.arange(0, wide)[None, :]
    mask = (row < count) & (column < across)
    tl.store(at + row * across + column, tile.to(at.dtype.element_ty), mask=mask)


def _inverse_length(features: tl.tensor) -> tl.tensor:
    """Return one over the length of every row."""
    wide = features.to(tl.float32)
    return 1.0 / tl.maximum(tl.sqrt(tl.sum(wide * wide, 1)), 1e-12)


def _weigh(logits: tl.tensor, slots: tl.constexpr, tall: tl.constexpr) -> tl.tensor:
    """Return the softmax over slots."""
    logits = tl.where(tl.arange(0, tall)[None, :] < slots, logits.to(tl.float32), float("-inf"))
    weights = tl.exp(logits - tl.max(logits, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


def _gather(
    query: tl.tensor,
    features: tl.tensor,
    scale: tl.tensor,
    out: tl.tensor,
    logits: tl.tensor,
    sums: tl.tensor,
    positions: tl.constexpr,
    slots: tl.constexpr,
    channels: tl.constexpr,
    rows: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """Average by weights whose largest is known only in the end: what was added before is made less when one grows."""
    image = tl.program_id(0).to(tl.int64)
    features += image * (positions * channels)
    logits += image * (positions * slots)
    q = _read(query + image * (slots * channels), 0, slots, channels, tall, wide)
    factor = tl.load(scale).to(tl.float32)
    largest = tl.full([tall], float("-inf"), tl.float32)
    divisor = tl.zeros([tall], tl.float32)
    found = tl.zeros([tall, wide], tl.float32)
    for first in range(0, positions, rows):
        x = _read(features, first, positions, channels, rows, wide)
        here = (tl.dot(x, tl.trans(q)) * (factor * _inverse_length(x))[:, None]).to(x.dtype)
        _write(logits, here, first, positions, slots, rows, tall)
        there = (first + tl.arange(0, rows)[:, None]) < positions
        here = tl.where(there, here.to(tl.float32), float("-inf"))
        most = tl.maximum(largest, tl.max(here, 0))
        less = tl.exp(largest - most)
        weights = tl.exp(here - most[None, :])
        divisor = divisor * less + tl.sum(weights, 0)
        found = found * less[:, None] + tl.dot(tl.trans(weights.to(x.dtype)), x)
        largest = most
    _write(out + image * (slots * channels), found / divisor[:, None], 0, slots, channels, tall, wide)
    slot = tl.arange(0, tall)
    tl.store(sums + image * slots + slot, largest + tl.log(divisor), mask=slot < slots)


def _gather_back(
    grad: tl.tensor,
    of_logits: tl.tensor,
    query: tl.tensor,
    features: tl.tensor,
    scale: tl.tensor,
    out: tl.tensor,
    logits: tl.tensor,
    sums: tl.tensor,
    of_query: tl.tensor,
    of_features: tl.tensor,
    of_scale: tl.tensor,
    positions: tl.constexpr,
    slots: tl.constexpr,
    channels: tl.constexpr,
    rows: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """Go through the positions once: a product of an average and its gradient is what the softmax takes off."""
    image = tl.program_id(0).to(tl.int64)
    map = image * (positions * channels)
    set = image * (slots * channels)
    logits += image * (positions * slots)
    of_logits += image * (positions * slots)
    q = _read(query + set, 0, slots, channels, tall, wide)
    factor = tl.load(scale).to(tl.float32)
    given = _read(grad + set, 0, slots, channels, tall, wide)
    average = _read(out + set, 0, slots, channels, tall, wide)
    common = tl.sum(given.to(tl.float32) * average.to(tl.float32), 1)
    slot = tl.arange(0, tall)
    divisor = tl.load(sums + image * slots + slot, mask=slot < slots, other=0.0)
    found = tl.zeros([tall, wide], tl.float32)
    for first in range(0, positions, rows):
        x = _read(features + map, first, positions, channels, rows, wide)
        here = _read(logits, first, positions, slots, rows, tall).to(tl.float32)
        there = ((first + tl.arange(0, rows)[:, None]) < positions) & (slot[None, :] < slots)
        weights = tl.where(there, tl.exp(here - divisor[None, :]), 0.0)
        of_here = weights * (tl.dot(x, tl.trans(given)) - common[None, :])
        of_here += _read(of_logits, first, positions, slots, rows, tall).to(tl.float32)
        inverse = _inverse_length(x)
        along = tl.sum(of_here * here, 1) * inverse * inverse
        of_cosine = (of_here * inverse[:, None]).to(x.dtype)
        of_x = tl.dot(weights.to(x.dtype), given) + tl.dot(of_cosine, q) * factor - x.to(tl.float32) * along[:, None]
        _write(of_features + map, of_x, first, positions, channels, rows, wide)
        found += tl.dot(tl.trans(of_cosine), x)
    # Added up as one row: two sums, one behind the other, fail in Triton 3.6 for sm_100.
    tl.store(of_scale + image, tl.sum(tl.reshape(found * q.to(tl.float32), [tall * wide]), 0))
    _write(of_query + set, found * factor, 0, slots, channels, tall, wide)


def _scatter(
    logits: tl.tensor,
    given: tl.tensor,
    out: tl.tensor,
    positions: tl.constexpr,
    slots: tl.constexpr,
    channels: tl.constexpr,
    rows: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    image, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * rows
    weights = _weigh(_read(logits + image * (positions * slots), first, positions, slots, rows, tall), slots, tall)
    held = _read(given + image * (slots * channels), 0, slots, channels, tall, wide)
    found = tl.dot(weights.to(held.dtype), held)
    _write(out + image * (positions * channels), found, first, positions, channels, rows, wide)


def _scatter_back(
    grad: tl.tensor,
    logits: tl.tensor,
    given: tl.tensor,
    of_logits: tl.tensor,
    of_slots: tl.tensor,
    parts: tl.tensor,
    positions: tl.constexpr,
    slots: tl.constexpr,
    channels: tl.constexpr,
    rows: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    sums: tl.constexpr,
) -> None:
    image = tl.program_id(0).to(tl.int64)
    set = image * (slots * channels)
    grad += image * (positions * channels)
    logits += image * (positions * slots)
    of_logits += image * (positions * slots)
    held = _read(given + set, 0, slots, channels, tall, wide)
    found = tl.zeros([tall, wide], tl.float32)
    for first in range(0, positions, rows):
        g = _read(grad, first, positions, channels, rows, wide)
        weights = _weigh(_read(logits, first, positions, slots, rows, tall), slots, tall)
        of_weights = tl.dot(g, tl.trans(held))
        of_here = weights * (of_weights - tl.sum(weights * of_weights, 1)[:, None])
        _write(of_logits, of_here, first, positions, slots, rows, tall)
        found += tl.dot(tl.trans(weights.to(g.dtype)), g)
    _write(of_slots + set, found, 0, slots, channels, tall, wide)
    if sums:  # what is not there is zero
        column = tl.arange(0, wide)
        tl.store(parts + image * channels + column, tl.sum(found, 0), mask=column < channels)
