"""GPU kernels of attention among few tokens: a program has one head of one image, all its tokens at once."""

from __future__ import annotations  # `tl` is not there yet when the kernels are defined

import functools
from typing import Any

from .language import triton_for

tl: Any = None  # triton.language, from the first use of a kernel on


@functools.cache
def kernel(name: str) -> Any:
    """Return a kernel, "attend" or "attend_back", ready to be compiled."""
    return _triton().jit({"attend": _attend, "attend_back": _attend_back}[name])


@functools.cache
def _triton() -> Any:
    return triton_for(globals(), _tile, _weigh)


def _tile(
    step: tl.constexpr, tokens: tl.constexpr, width: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr
) -> tl.tuple:
    """Return where a head's tokens lie, rows `step` apart, and which of the tile are there."""
    row, column = tl.arange(0, tall)[:, None], tl.arange(0, wide)[None, :]
    return row * step + column, (row < tokens) & (column < width)


def _weigh(
    query: tl.tensor, key: tl.tensor, tokens: tl.constexpr, width: tl.constexpr, tall: tl.constexpr
) -> tl.tensor:
    """Return the weight of every key for every query."""
    logits = tl.dot(query, tl.trans(key)) * (1.4426950408889634 * width**-0.5)
    logits = tl.where(tl.arange(0, tall)[None, :] < tokens, logits, float("-inf"))
    weights = tl.exp2(logits - tl.max(logits, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


def _attend(
    qkv: tl.tensor,
    out: tl.tensor,
    tokens: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    image, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    all: tl.constexpr = heads * width
    at, there = _tile(3 * all, tokens, width, tall, wide)
    qkv += image * (3 * tokens * all) + head * width
    query = tl.load(qkv + at, mask=there, other=0.0)
    key = tl.load(qkv + at + all, mask=there, other=0.0)
    value = tl.load(qkv + at + 2 * all, mask=there, other=0.0)
    weights = _weigh(query, key, tokens, width, tall)
    at, there = _tile(all, tokens, width, tall, wide)
    found = tl.dot(weights.to(value.dtype), value).to(value.dtype)
    tl.store(out + image * (tokens * all) + head * width + at, found, mask=there)


def _attend_back(
    grad: tl.tensor,
    qkv: tl.tensor,
    out: tl.tensor,
    parts: tl.tensor,
    tokens: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    sums: tl.constexpr,
) -> None:
    image, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    all: tl.constexpr = heads * width
    at, there = _tile(all, tokens, width, tall, wide)
    given = tl.load(grad + image * (tokens * all) + head * width + at, mask=there, other=0.0)
    at, there = _tile(3 * all, tokens, width, tall, wide)
    first = image * (3 * tokens * all) + head * width
    query = tl.load(qkv + first + at, mask=there, other=0.0)
    key = tl.load(qkv + first + at + all, mask=there, other=0.0)
    value = tl.load(qkv + first + at + 2 * all, mask=there, other=0.0)
    weights = _weigh(query, key, tokens, width, tall)
    of_value = tl.dot(tl.trans(weights.to(given.dtype)), given)
    of_weights = tl.dot(given, tl.trans(value))
    of_logits = weights * (of_weights - tl.sum(weights * of_weights, 1)[:, None]) * width**-0.5
    of_logits = of_logits.to(given.dtype)
    of_query = tl.dot(of_logits, key)
    of_key = tl.dot(tl.trans(of_logits), query)
    tl.store(out + first + at, of_query.to(given.dtype), mask=there)
    tl.store(out + first + at + all, of_key.to(given.dtype), mask=there)
    tl.store(out + first + at + 2 * all, of_value.to(given.dtype), mask=there)
    if sums:  # what is not there is zero
        column = tl.arange(0, wide)
        parts += image * (3 * all) + head * width + column
        tl.store(parts, tl.sum(of_query, 0), mask=column < width)
        tl.store(parts + all, tl.sum(of_key, 0), mask=column < width)
        tl.store(parts + 2 * all, tl.sum(of_value, 0), mask=column < width)
