"""Train a dense block on the CPU a few images at a time, keeping its output and nothing else.

What its layers read is a part of that output, so the backward pass computes only their first convolutions again. A
convolution's gradient towards its input is a convolution by the turned kernel, that towards the kernel one product of
matrices; PyTorch's own take several times as long there.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .dense_stage import Scratch, around, as_map, by_piece, in_parts, pieces_of, pool, rows


class Pieces(torch.autograd.Function):
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
        weights = by_piece(first)
        moments, wholes, scratch = Moments(), [], Scratch()
        for part in in_parts(x):
            wholes.append(torch.cat([part, *pieces_of(part, weights, kernels, scratch)], dim=1))
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


class Moments:
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
