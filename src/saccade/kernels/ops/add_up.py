"""Sums of parts: a GPU kernel whose programs each add up some positions leaves them for another one to add up.

A compiler takes two kernels for each array where there are more than a hundred parts.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..triton.add_up import kernel
from ..triton.language import launchable

TALL, WIDE = 512, 8  # parts and numbers that a program has at a time: few numbers, so that there are many programs


def add_up(*parts: Tensor) -> list[Tensor]:
    """Return the sums over the first axis of one array or two by one kernel, always added up in the same order.

    Args:
        parts: float32, parts, N; each of other lengths.
    """
    widths = [one.shape[1] for one in parts]
    blocks = sum_parts(list(parts)).split([_padded(width) for width in widths])
    return [block[:width] for block, width in zip(blocks, widths, strict=True)]


@torch.library.triton_op("saccade::sum_parts", mutates_args={})
def sum_parts(parts: Sequence[Tensor]) -> Tensor:
    """Return the sums of one array or two, one behind the other, each filled up to a multiple of `WIDE`."""
    first, second = parts[0].contiguous(), parts[-1].contiguous()
    out = first.new_empty(sum(_padded(one.shape[1]) for one in parts), dtype=torch.float32)
    launchable(kernel())[(len(out) // WIDE,)](
        first, second, len(first), len(second), first.shape[1], second.shape[1], out, TALL, WIDE, num_warps=8
    )
    return out


def sum_parts_reference(parts: Sequence[Tensor]) -> Tensor:
    """See `sum_parts`."""
    return torch.cat([F.pad(one.sum(0), (0, -one.shape[1] % WIDE)) for one in parts])


def _padded(width: int) -> int:
    return -(-width // WIDE) * WIDE


REFERENCES = {"sum_parts": sum_parts_reference}
