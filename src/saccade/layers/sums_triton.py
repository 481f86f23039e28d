"""Sum of what the programs of a GPU kernel have added up each, in Triton: parts, N to N.

A compiler takes two kernels for it where there are more than a hundred parts.
"""

from __future__ import annotations  # `tl` is not there yet when the kernel is defined

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .triton_language import triton_for

TALL, WIDE = 512, 8  # parts and numbers that a program has at a time: few numbers, so that there are many programs
tl: Any = None  # triton.language, from the first use of the kernel on


def run_add_up(start: Callable[[Any], Any], parts: Tensor, others: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the sums over the first axis, of two arrays by one kernel, always added up in the same order.

    Args:
        start: makes the kernel one that can be started.
        parts: float32, parts, N.
        others: the same of other lengths; nothing is returned for none.
    """
    more = parts[:0, :0] if others is None else others
    out, beside = parts.new_empty(parts.shape[1]), parts.new_empty(more.shape[1])
    blocks = -(-parts.shape[1] // WIDE)
    start(kernel())[(blocks + -(-more.shape[1] // WIDE),)](
        parts, out, *parts.shape, more, beside, *more.shape, blocks, TALL, WIDE, num_warps=8
    )
    return out, beside


@torch.library.triton_op("saccade::add_up", mutates_args={})
def add_up(parts: Tensor, others: Tensor | None) -> tuple[Tensor, Tensor]:
    """See `run_add_up`."""
    return run_add_up(torch.library.wrap_triton, parts, others)


@functools.cache
def kernel() -> Any:
    """Return the kernel, ready to be compiled."""
    return triton_for(globals(), _columns).jit(_add_up)


def _add_up(
    parts: tl.tensor,
    out: tl.tensor,
    count: int,
    across: int,
    others: tl.tensor,
    beside: tl.tensor,
    other_count: int,
    other_across: int,
    blocks: int,
    tall: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """Add up some columns, a tile of parts at a time; the first programs have the first array."""
    block = tl.program_id(0)
    if block < blocks:
        _columns(parts, out, count, across, block, tall, wide)
    else:
        _columns(others, beside, other_count, other_across, block - blocks, tall, wide)


def _columns(
    parts: tl.tensor, out: tl.tensor, count: int, across: int, block: int, tall: tl.constexpr, wide: tl.constexpr
) -> None:
    column = block * wide + tl.arange(0, wide)
    row = tl.arange(0, tall)[:, None]
    found = tl.zeros([tall, wide], tl.float32)
    for first in range(0, count, tall):
        there = (first + row < count) & (column < across)[None, :]
        found += tl.load(parts + (first + row) * across + column[None, :], mask=there, other=0.0)
    tl.store(out + column, tl.sum(found, 0), mask=column < across)
