"""A dense block on the CPU, a few images at a time and channels last, with the average pooling behind it.

The first convolutions of all layers are sums over the pieces that a layer reads: the block's input and the channels of
each layer before. Every piece is added to all of them as soon as it is there, and no concatenation is made.

Training keeps the block's output and nothing else. What its layers read is a part of that output, so the backward pass
computes only their first convolutions again. A convolution's gradient towards its input is a convolution by the turned
kernel, that towards the kernel one product of matrices; PyTorch's own take several times as long there.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .positions import as_map, rows

ROWS = 16384  # positions worked on at a time: their maps stay in the cache


def dense_block_reference(x: Tensor, halve: bool, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `DenseBlockInParts` does."""
    count = len(tensors) // 2
    for first, kernel in zip(tensors[:count], tensors[count:], strict=True):
        x = torch.cat([x, F.conv2d(F.relu(F.conv2d(F.relu(x), first)), kernel, padding=1)], dim=1)
    variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    return pool(x, halve), mean, variance


def in_parts(x: Tensor) -> tuple[Tensor, ...]:
    """Split maps B, C, H, W into groups of images of about ROWS positions, channels last."""
    count = max(1, ROWS // max(1, x.shape[2] * x.shape[3]))
    return tuple(part.contiguous(memory_format=torch.channels_last) for part in x.split(count))


def weights_by_piece(first: Sequence[Tensor]) -> list[Tensor]:
    """Sort the first convolutions' weights, each hidden, width, 1, 1, by what they read: matrices width, all hidden."""
    widths = [first[0].shape[1]] + [later.shape[1] - now.shape[1] for now, later in pairwise(first)]
    sorted_, start = [], 0
    for index, width in enumerate(widths):
        weight = torch.cat([later[:, start : start + width, 0, 0] for later in first[index:]])
        sorted_.append(weight.t().contiguous())
        start += width
    return sorted_


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


def new_channels(x: Tensor, weights: Sequence[Tensor], kernels: Sequence[Tensor], scratch: Scratch) -> Iterator[Tensor]:
    """Yield the new channels of one layer after the other, B, growth, H, W.

    Args:
        x: maps, B, C, H, W, channels last.
        weights: what `weights_by_piece` returns.
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


def pooled_dense_block(x: Tensor, first: Sequence[Tensor], kernels: Sequence[Tensor], *, halve: bool) -> Tensor:
    """Return a dense block's output, pooled, B, width, H', W'."""
    weights, scratch = weights_by_piece(first), Scratch()
    parts = []
    for part in in_parts(x):
        found = [pool(part, halve)]
        found += [pool(piece, halve) for piece in new_channels(part, weights, kernels, scratch)]
        parts.append(torch.cat(found, dim=1))
    return torch.cat(parts)


class DenseBlockInParts(torch.autograd.Function):
    """A dense block's output, pooled, and each channel's mean and variance before pooling.

    Args:
        x: maps, B, C, H, W.
        halve: whether the output is averaged over cells of 2x2.
        tensors: the layers' 1x1 kernels, hidden, width, 1, 1, then as many 3x3 kernels, growth, hidden, 3, 3.

    Returns:
        B, width, H', W', then mean and biased variance, both width.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, halve: bool, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Go through the block."""
        count = len(tensors) // 2
        first, kernels = tensors[:count], tensors[count:]
        weights = weights_by_piece(first)
        moments, wholes, scratch = RunningMoments(), [], Scratch()
        for part in in_parts(x):
            wholes.append(torch.cat([part, *new_channels(part, weights, kernels, scratch)], dim=1))
            moments.add(rows(wholes[-1]), scratch)
        mean, variance = moments.mean.to(x.dtype), (moments.spread / moments.count).to(x.dtype)
        ctx.halve, ctx.count = halve, moments.count
        ctx.save_for_backward(mean, *tensors, *wholes)
        return torch.cat([pool(whole, halve) for whole in wholes]), mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, of_mean: Tensor, of_variance: Tensor) -> tuple[Tensor | None, ...]:
        """Go back, part after part."""
        mean, *kept = ctx.saved_tensors
        count = (len(ctx.needs_input_grad) - 2) // 2
        first, kernels, wholes = kept[:count], kept[count : 2 * count], kept[2 * count :]
        slope = of_variance * (2 / ctx.count)  # the gradient of a channel's moments is a line in its values
        offset = of_mean / ctx.count - slope * mean
        matrices = [weight.flatten(1) for weight in first]
        turned = [kernel.flip(2, 3).transpose(0, 1).contiguous() for kernel in kernels]
        totals = [torch.zeros_like(tensor) for tensor in (*first, *kernels)]
        found, scratch, start = [], Scratch(), 0
        for whole in wholes:
            coming = grad[start : start + len(whole)]
            start += len(whole)
            direct = torch.addcmul(offset, rows(whole), slope)
            spread_back(coming, as_map(direct, whole), ctx.halve)
            of_x = back(whole, direct, matrices, turned, totals, scratch)
            found.append(as_map(of_x, whole))
        return torch.cat(found) if ctx.needs_input_grad[0] else None, None, *totals


def spread_back(grad: Tensor, total: Tensor, halve: bool) -> None:
    """Add to a map's gradient, B, C, H, W, what comes back through the pooling, B, C, H', W'."""
    if halve:
        height, width = (2 * side for side in grad.shape[2:])  # what is left over at the edges was not pooled
        total = total[:, :, :height, :width].unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
        total.add_(grad[:, :, :, None, :, None], alpha=0.25)
    else:
        total.add_(grad)


def back(
    whole: Tensor,
    direct: Tensor,
    first: Sequence[Tensor],
    turned: Sequence[Tensor],
    totals: Sequence[Tensor],
    scratch: Scratch,
) -> Tensor:
    """Return the gradient towards what a block was given, N, C, and add those towards its kernels to `totals`.

    Args:
        whole: the block's output, B, all channels, H, W, channels last.
        direct: the gradient that reaches it from behind the block, N, all channels.
        first: matrices of the layers' 1x1 convolutions, hidden, width.
        turned: the layers' 3x3 kernels with their axes turned, hidden, growth, 3, 3.
        totals: gradients of all kernels.
        scratch: memory that is written over.
    """
    width = first[-1].shape[1]
    read = torch.clamp_min(rows(whole)[:, :width], 0, out=scratch.matrix("positive", direct, width))
    through = scratch.matrix("through", direct, width)  # gradients of what was read, before its ReLU
    for index in reversed(range(len(first))):
        weight, start = first[index], first[index].shape[1]
        piece = slice(start, start + turned[index].shape[1])
        of_piece = direct[:, piece]
        if index + 1 < len(first):
            of_piece = of_piece + masked(through[:, piece], read[:, piece])
        of_map = as_map(of_piece.contiguous(), whole)
        inner = torch.mm(read[:, :start], weight.t(), out=scratch.matrix("inner", direct, len(weight))).clamp_min_(0)
        totals[len(first) + index].add_(kernel_gradient(inner, of_map))
        of_inner = masked(rows(F.conv2d(of_map, turned[index], padding=1)), inner)
        totals[index].flatten(1).add_((read[:, :start].t() @ of_inner).t())
        through[:, :start].addmm_(of_inner, weight, beta=int(index + 1 < len(first)))
    start = first[0].shape[1]
    return direct[:, :start] + masked(through[:, :start], read[:, :start])


def masked(grad: Tensor, values: Tensor) -> Tensor:
    """Return the gradient behind a ReLU of the values."""
    return torch.ops.aten.threshold_backward(grad, values, 0)


def kernel_gradient(inner: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of 3x3 kernels, out, in, 3, 3, from what they read, N, in, and their output's."""
    cells = around(F.pad(grad.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1)))
    return (cells.t() @ inner).view(3, 3, -1, inner.shape[1]).flip(0, 1).permute(2, 3, 0, 1)


class RunningMoments:
    """Mean and sum of squared deviations of rows that come in parts, in float64."""

    count = 0

    def add(self, matrix: Tensor, scratch: Scratch) -> None:
        """Take in a part."""
        count, mean = len(matrix), matrix.mean(0)
        apart = torch.sub(matrix, mean, out=scratch.matrix("apart", matrix, matrix.shape[1]))
        mean, spread = mean.double(), apart.square_().sum(0).double()
        if self.count == 0:
            self.count, self.mean, self.spread = count, mean, spread
            return
        total, apart = self.count + count, mean - self.mean
        self.mean = self.mean + apart * (count / total)
        self.spread = self.spread + spread + apart.square() * (self.count * count / total)
        self.count = total
