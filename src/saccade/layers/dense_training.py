"""Train a dense embedding on the CPU a few images at a time, keeping only what lies between its stages.

The backward pass computes a part again before it goes back through it, so memory for the maps inside a stage is needed
for one part alone. A convolution's gradient towards its input is a convolution by the turned kernel, that towards the
kernel one product of matrices; PyTorch's own take several times as long there.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .dense_stage import Scratch, as_map, in_parts, pieces_of, pool, rows


class Pieces(torch.autograd.Function):
    """A dense block's output, pooled, and each channel's mean and variance before pooling.

    Args:
        x: maps, B, C, H, W.
        halve: whether the output is averaged over cells of 2x2.
        tensors: as many matrices as `by_piece` returns, then as many 3x3 kernels.

    Returns:
        B, width, H', W', then mean and biased variance, both width.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, halve: bool, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Go through the block."""
        count = len(tensors) // 2
        weights, kernels = tensors[:count], tensors[count:]
        moments, pooled, scratch = Moments(), [], Scratch()
        for part in in_parts(x):
            found = []
            for piece in (part, *(new for new, _ in pieces_of(part, weights, kernels, scratch))):
                found.append((pool(piece, halve), *moments_of(rows(piece))))
            maps, means, spreads = zip(*found, strict=True)
            pooled.append(torch.cat(maps, dim=1))
            moments.add(len(rows(part)), torch.cat(means), torch.cat(spreads))
        mean, variance = moments.mean.to(x.dtype), (moments.spread / moments.count).to(x.dtype)
        ctx.halve, ctx.count = halve, moments.count
        ctx.save_for_backward(x, mean, *tensors)
        return torch.cat(pooled), mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, of_mean: Tensor, of_variance: Tensor) -> tuple[Tensor | None, ...]:
        """Go back, computing every part again."""
        x, mean, *tensors = ctx.saved_tensors
        half = len(tensors) // 2
        weights, kernels = tensors[:half], tensors[half:]
        slope = of_variance * (2 / ctx.count)  # the gradient of a channel's moments is a line in its values
        offset = of_mean / ctx.count - slope * mean
        totals = [torch.zeros_like(tensor) for tensor in tensors]
        turned = [kernel.flip(2, 3).transpose(0, 1).contiguous() for kernel in kernels]
        of_x, scratch, start = torch.empty_like(x, memory_format=torch.channels_last), Scratch(), 0
        for part in in_parts(x):
            found = [piece for piece, _ in pieces_of(part, weights, kernels, scratch)]
            ways = Ways(part, grad[start : start + len(part)], slope, offset, halve=ctx.halve)
            of_x[start : start + len(part)] = back(ways, scratch.kept["hidden"], found, weights, turned, totals)
            start += len(part)
        return of_x if ctx.needs_input_grad[0] else None, None, *totals


class Ways:
    """What reaches the pieces of a part from the block's output: through the pooling and through the moments."""

    def __init__(self, x: Tensor, grad: Tensor, slope: Tensor, offset: Tensor, *, halve: bool) -> None:
        self.x, self.grad, self.slope, self.offset, self.halve = x, grad, slope, offset, halve

    def to(self, piece: Tensor, start: int) -> Tensor:
        """Return the gradient towards a piece whose channels begin at `start`, B * H * W, channels."""
        stop = start + piece.shape[1]
        straight = rows(piece) * self.slope[start:stop] + self.offset[start:stop]
        coming = self.grad[:, start:stop].permute(0, 2, 3, 1)
        of_map = straight.view(*self.x.permute(0, 2, 3, 1).shape[:3], -1)
        if not self.halve:
            return straight.add_(coming.reshape(straight.shape))
        height, width = (2 * side for side in coming.shape[1:3])  # what is left over at the edges was not pooled
        cells = of_map[:, :height, :width].unflatten(2, (-1, 2)).unflatten(1, (-1, 2))
        cells.add_(coming[:, :, None, :, None], alpha=0.25)
        return straight


def back(
    ways: Ways, hidden: Tensor, pieces: list[Tensor], weights: list[Tensor], turned: list[Tensor], totals: list[Tensor]
) -> Tensor:
    """Return the gradient towards a part and add those towards the weights to `totals`."""
    x = ways.x
    of_hidden = hidden  # a layer's gradients take the place of its values
    stop, end = hidden.shape[1], ways.grad.shape[1]
    for index in reversed(range(len(pieces))):
        piece, kernel = pieces[index], turned[index]
        end -= piece.shape[1]
        of_piece = ways.to(piece, end)
        if index + 1 < len(pieces):
            later, values = of_hidden[:, stop:], rows(piece)
            of_piece += masked(later @ weights[index + 1].t(), values)
            totals[index + 1] += values.relu().t() @ later
        start = stop - len(kernel)
        before = hidden[:, start:stop]
        totals[len(pieces) + index] += kernel_gradient(before.relu(), as_map(of_piece, x))
        of_hidden[:, start:stop] = masked(rows(F.conv2d(as_map(of_piece, x), kernel, padding=1)), before)
        stop = start
    values = rows(x)
    totals[0] += values.relu().t() @ of_hidden
    return as_map(ways.to(x, 0).add_(masked(of_hidden @ weights[0].t(), values)), x)


def masked(grad: Tensor, values: Tensor) -> Tensor:
    """Return the gradient behind a ReLU of the values."""
    return torch.ops.aten.threshold_backward(grad, values, 0)


def kernel_gradient(inner: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of 3x3 kernels, out, in, 3, 3, from what they read, N, in, and their output's."""
    padded = F.pad(grad.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    batch, height, width, out = padded.shape
    far, row, step, _ = padded.stride()
    # the three neighbours in a row lie side by side
    shape = (batch, height - 2, width - 2, 3, 3 * out)
    around = padded.as_strided(shape, (far, row, step, row, 1)).reshape(-1, 9 * out)
    return (inner.t() @ around).view(-1, 3, 3, out).flip(1, 2).permute(3, 0, 1, 2)


class Stem(torch.autograd.Function):
    """3x3 convolution and max pooling to half the side, keeping the images alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return B, out, H / 2, W / 2."""
        ctx.save_for_backward(x, weight, bias)
        return torch.cat([F.max_pool2d(F.conv2d(p, weight, bias, padding=1), 3, 2, 1) for p in in_parts(x)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Go back, computing every part again."""
        x, weight, bias = ctx.saved_tensors
        of_weight, of_bias, of_x = torch.zeros_like(weight), torch.zeros_like(bias), []
        turned = weight.flip(2, 3).transpose(0, 1).contiguous()
        start = 0
        for part in in_parts(x):
            coming = grad[start : start + len(part)].contiguous(memory_format=torch.channels_last)
            start += len(part)
            of_made = before_pooling(coming, F.conv2d(part, weight, bias, padding=1))
            flat = rows(of_made)
            around = F.unfold(part, 3, padding=1).transpose(0, 1).flatten(1)  # in * 9, N
            of_weight += (around @ flat).t().reshape(weight.shape)
            of_bias += flat.sum(0)
            if ctx.needs_input_grad[0]:
                of_x.append(F.conv2d(of_made, turned, padding=1))
        return torch.cat(of_x) if of_x else None, of_weight, of_bias


def before_pooling(grad: Tensor, made: Tensor) -> Tensor:
    """Return the gradient towards a map that was pooled to half its side."""
    index = F.max_pool2d_with_indices(made, (3, 3), (2, 2), (1, 1))[1]
    back = torch.ops.aten.max_pool2d_with_indices_backward
    return back(grad, made, [3, 3], [2, 2], [1, 1], [1, 1], False, index)


class Moments:
    """Mean and sum of squared deviations of rows that come in parts, in float64."""

    count = 0

    def add(self, count: int, mean: Tensor, spread: Tensor) -> None:
        """Take in a part."""
        mean, spread = mean.double(), spread.double()
        if self.count == 0:
            self.count, self.mean, self.spread = count, mean, spread
            return
        total, apart = self.count + count, mean - self.mean
        self.mean = self.mean + apart * (count / total)
        self.spread = self.spread + spread + apart.square() * (self.count * count / total)
        self.count = total


def moments_of(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of each column and its sum of squared deviations."""
    mean = matrix.mean(0)
    apart = matrix - mean
    return mean, apart.square_().sum(0)
