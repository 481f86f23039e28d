"""What is done to several small arrays by one GPU kernel, which takes longer to start than to run, in Triton.

Sums of what the programs of other kernels have added up each: a compiler takes two kernels for each array where there
are more than a hundred parts. And kernels of convolutions of single channels, laid out and rounded as they are read.
"""

from __future__ import annotations  # `tl` is not there yet when the kernel is defined

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .triton_language import triton_for

MOST = 10  # arrays that the kernel takes
TALL, WIDE = 512, 8  # parts and numbers that a program has at a time: few numbers, so that there are many programs
VALUES = 1024  # that a program lays out
tl: Any = None  # triton.language, from the first use of the kernel on


def run_add_up(start: Callable[[Any], Any], parts: Sequence[Tensor]) -> Tensor:
    """Return the sums over the first axis of arrays, always added up in the same order, to be taken apart by `split`.

    Args:
        start: makes the kernel one that can be started.
        parts: at most `MOST` of them, float32, parts, N; each of other lengths.
    """
    widths = [one.shape[1] for one in parts]
    return _start(start, list(parts), [len(one) for one in parts], widths, torch.float32, WIDE, False)


@torch.library.triton_op("saccade::add_up", mutates_args={})
def add_up(parts: Sequence[Tensor]) -> Tensor:
    """See `run_add_up`."""
    return run_add_up(torch.library.wrap_triton, parts)


def run_lay_out(start: Callable[[Any], Any], weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return kernels C, 1, k, k as k * k, C in another precision, to be taken apart by `split`.

    Args:
        start: makes the kernel one that can be started.
        weights: at most `MOST` of them.
        dtype: the precision.
    """
    sizes = [one.numel() for one in weights]
    return _start(start, list(weights), [one[0].numel() for one in weights], sizes, dtype, VALUES, True)


@torch.library.triton_op("saccade::lay_out", mutates_args={})
def lay_out(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """See `run_lay_out`."""
    return run_lay_out(torch.library.wrap_triton, weights, dtype)


def split(out: Tensor, widths: Sequence[int], wide: int) -> list[Tensor]:
    """Return what was made of each array, from numbers that lie in blocks of `WIDE` sums or `VALUES` laid out."""
    blocks = out.split([-(-width // wide) * wide for width in widths])
    return [block[:width] for block, width in zip(blocks, widths, strict=True)]


def _start(
    start: Callable[[Any], Any],
    arrays: list[Tensor],
    counts: list[int],
    widths: list[int],
    dtype: torch.dtype,
    wide: int,
    turn: bool,
) -> Tensor:
    """Start the kernel with as many programs as the arrays take, for `wide` numbers each."""
    more = MOST - len(arrays)
    given = [one.contiguous() for one in arrays] + [arrays[0]] * more
    blocks = sum(-(-width // wide) for width in widths)
    out = arrays[0].new_empty(blocks * wide, dtype=dtype)
    start(kernel())[(blocks,)](
        *given, *counts, *[0] * more, *widths, *[0] * more, out, TALL, wide, turn, num_warps=8 if wide == WIDE else 4
    )
    return out


@functools.cache
def kernel() -> Any:
    """Return the kernel, ready to be compiled."""
    return triton_for(globals(), _or_next).jit(_small)


def _or_next(here: tl.tuple, array: tl.tensor, count: int, across: int, wide: tl.constexpr) -> tl.tuple:
    """Return which block of which array a program is for: as it was, or of the next one where that has no more."""
    blocks = tl.cdiv(here[3], wide)
    later = here[0] >= blocks
    return (
        tl.where(later, here[0] - blocks, here[0]),
        tl.where(later, array, here[1]),
        tl.where(later, count, here[2]),
        tl.where(later, across, here[3]),
    )


def _small(
    array0: tl.tensor,
    array1: tl.tensor,
    array2: tl.tensor,
    array3: tl.tensor,
    array4: tl.tensor,
    array5: tl.tensor,
    array6: tl.tensor,
    array7: tl.tensor,
    array8: tl.tensor,
    array9: tl.tensor,
    count0: int,
    count1: int,
    count2: int,
    count3: int,
    count4: int,
    count5: int,
    count6: int,
    count7: int,
    count8: int,
    count9: int,
    across0: int,
    across1: int,
    across2: int,
    across3: int,
    across4: int,
    across5: int,
    across6: int,
    across7: int,
    across8: int,
    across9: int,
    out: tl.tensor,
    tall: tl.constexpr,
    wide: tl.constexpr,
    turn: tl.constexpr,
) -> None:
    """Add up some columns of an array, a tile of parts at a time, or lay out some numbers of one."""
    here = (tl.program_id(0), array0, count0, across0)
    here = _or_next(here, array1, count1, across1, wide)
    here = _or_next(here, array2, count2, across2, wide)
    here = _or_next(here, array3, count3, across3, wide)
    here = _or_next(here, array4, count4, across4, wide)
    here = _or_next(here, array5, count5, across5, wide)
    here = _or_next(here, array6, count6, across6, wide)
    here = _or_next(here, array7, count7, across7, wide)
    here = _or_next(here, array8, count8, across8, wide)
    here = _or_next(here, array9, count9, across9, wide)
    block, array, count, across = here
    column = block * wide + tl.arange(0, wide)
    if turn:
        channels = across // count
        value = tl.load(array + column % channels * count + column // channels, mask=column < across, other=0.0)
    else:
        row = tl.arange(0, tall)[:, None]
        found = tl.zeros([tall, wide], tl.float32)
        for above in range(0, count, tall):
            there = (above + row < count) & (column < across)[None, :]
            found += tl.load(array + (above + row) * across + column[None, :], mask=there, other=0.0)
        value = tl.sum(found, 0)
    # Where it is written is told from the program's number alone, or a compiler would take the arrays for changed.
    at = tl.program_id(0) * wide + tl.arange(0, wide)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=column < across)
