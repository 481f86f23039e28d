"""A dense block and its transition on the CPU, a few images at a time and channels last.

The transition is linear, so it is applied behind the average pooling that follows it, to a quarter of the positions.
The first convolutions of all layers are sums over the pieces that a layer reads; each piece is added to all of them as
soon as it is there, and no concatenation is made.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 16384  # positions worked on at a time: their maps stay in the cache


def in_parts(x: Tensor) -> tuple[Tensor, ...]:
    """Split maps B, C, H, W into groups of images of about ROWS positions, channels last."""
    count = max(1, ROWS // max(1, x.shape[2] * x.shape[3]))
    return tuple(part.contiguous(memory_format=torch.channels_last) for part in x.split(count))


def by_piece(first: Sequence[Tensor]) -> list[Tensor]:
    """Sort the first convolutions' weights, each hidden, width, 1, 1, by what they read: matrices width, all hidden."""
    widths = [first[0].shape[1]] + [later.shape[1] - now.shape[1] for now, later in pairwise(first)]
    sorted_, start = [], 0
    for index, width in enumerate(widths):
        weight = torch.cat([later[:, start : start + width, 0, 0] for later in first[index:]])
        sorted_.append(weight.t().contiguous())
        start += width
    return sorted_


def rows(x: Tensor) -> Tensor:
    """See a map B, C, H, W that lies channels last as a matrix B * H * W, C."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def as_map(matrix: Tensor, like: Tensor) -> Tensor:
    """See a matrix of rows as a map B, C, H, W of the size of another."""
    batch, _, height, width = like.shape
    return matrix.view(batch, height, width, -1).permute(0, 3, 1, 2)


def around(padded: Tensor) -> Tensor:
    """Return the 3x3 cells around the positions of a map B, H + 2, W + 2, C, as a matrix B * H * W, 9 * C."""
    batch, height, width, channels = padded.shape
    far, row, step, _ = padded.stride()
    # the three neighbours in a row lie side by side
    shape = (batch, height - 2, width - 2, 3, 3 * channels)
    return padded.as_strided(shape, (far, row, step, row, 1), padded.storage_offset()).reshape(-1, 9 * channels)


class Scratch:
    """Memory for one part after the other: fresh memory costs as much as a pass over it."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def matrix(self, name: str, like: Tensor, width: int) -> Tensor:
        """Return a matrix of the given width, with as many rows as another and any values."""
        kept = self.kept.get(name)
        if kept is None or kept.shape != (len(like), width):
            kept = self.kept[name] = like.new_empty(len(like), width)
        return kept


def pieces_of(x: Tensor, weights: Sequence[Tensor], kernels: Sequence[Tensor], scratch: Scratch) -> Iterator[Tensor]:
    """Yield the new channels of one layer after the other, B, growth, H, W.

    Args:
        x: maps, B, C, H, W, channels last.
        weights: what `by_piece` returns.
        kernels: 3x3 kernels of the layers, growth, hidden, 3, 3.
        scratch: memory that is written over.
    """
    given = rows(x)
    positive = torch.clamp_min(given, 0, out=scratch.matrix("positive", given, given.shape[1]))
    hidden = torch.mm(positive, weights[0], out=scratch.matrix("hidden", given, weights[0].shape[1]))
    for index, kernel in enumerate(kernels):
        size = kernel.shape[1]
        inner = torch.clamp_min(hidden[:, :size], 0, out=scratch.matrix("inner", given, size))
        piece = F.conv2d(as_map(inner, x), kernel, padding=1)
        yield piece
        hidden = hidden[:, size:]
        if index + 1 < len(kernels):
            new = torch.clamp_min(rows(piece), 0, out=scratch.matrix("new", given, piece.shape[1]))
            hidden.addmm_(new, weights[index + 1])


def pool(x: Tensor, halve: bool) -> Tensor:
    """Average over cells of 2x2, or nothing."""
    return F.avg_pool2d(x, 2) if halve else x


def pooled_pieces(x: Tensor, first: Sequence[Tensor], kernels: Sequence[Tensor], *, halve: bool) -> Tensor:
    """Return a dense block's output, pooled, B, width, H', W'."""
    weights, scratch = by_piece(first), Scratch()
    parts = []
    for part in in_parts(x):
        found = [pool(part, halve)]
        found += [pool(piece, halve) for piece in pieces_of(part, weights, kernels, scratch)]
        parts.append(torch.cat(found, dim=1))
    return torch.cat(parts)
