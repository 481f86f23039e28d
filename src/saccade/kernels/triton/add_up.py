"""GPU kernel that adds up one or two small arrays at once: it takes longer to start than to run."""

from __future__ import annotations  # `tl` is not there yet when the kernel is defined

import functools
from typing import Any

from .language import triton_for

tl: Any = None  # triton.language, from the first use of the kernel on


@functools.cache
def kernel() -> Any:
    """Return the kernel, ready to be compiled."""
    return triton_for(globals()).jit(_add_up)


def _add_up(
    array0: tl.tensor,
    array1: tl.tensor,
    count0: int,
    count1: int,
    across0: int,
    across1: int,
    out: tl.tensor,
    tall: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """Add up some columns of one of the arrays, a tile of parts at a time."""
    first = tl.cdiv(across0, wide)  # programs that the first array takes
    later = tl.program_id(0) >= first
    block = tl.where(later, tl.program_id(0) - first, tl.program_id(0))
    array = tl.where(later, array1, array0)
    count = tl.where(later, count1, count0)
    across = tl.where(later, across1, across0)
    column = block * wide + tl.arange(0, wide)
    row = tl.arange(0, tall)[:, None]
    found = tl.zeros([tall, wide], tl.float32)
    for above in range(0, count, tall):
        there = (above + row < count) & (column < across)[None, :]
        found += tl.load(array + (above + row) * across + column[None, :], mask=there, other=0.0)
    # Where it is written is told from the program's number alone, or a compiler would take the arrays for changed.
    at = tl.program_id(0) * wide + tl.arange(0, wide)
    tl.store(out + at, tl.sum(found, 0), mask=column < across)
