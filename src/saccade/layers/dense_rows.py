"""A dense block and its transition on a GPU: 1x1 convolutions as products of rows, and pooling before the transition.

A compiler lays the gradients of slices of a map out as it likes, and each of them is copied before a convolution takes
it; rows of a matrix stay as they are. Transitions are linear in inference, and in training but for the statistics of
their norm: behind the pooling they see a quarter of the positions, and the block's output is never made.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from . import halves
from .dense_stage import as_map, rows
from .numerics import as_products_read, line_of, upcast

GROUP = 3  # new pieces that later layers read side by side
JOINED = 8  # inputs of a concatenation that Inductor joins in one kernel
LEAST = 16  # channels that are worth a kernel: a sector of memory


def pieces_by_rows(x: Tensor, first: Sequence[Tensor], second: Sequence[Any]) -> list[Tensor]:
    """Return the input of a dense block and each layer's new channels, B, growth, H, W.

    A layer's first convolution is a sum of products over what it reads. The input goes through one product for all
    layers. New pieces do so three at a time, for all layers after them; until there are three, each by itself for the
    layers up to then. That writes and reads the fewest numbers.

    Args:
        x: maps, B, C, H, W, best channels last.
        first: weights of the layers' 1x1 convolutions, hidden, width, 1, 1.
        second: their 3x3 convolutions.
    """
    pieces = [x]
    parts: list[list[Tensor]] = [[] for _ in first]  # of each layer's sum, as they come
    reads = _reads(len(first))
    starts = [0, *(weight.shape[1] for weight in first)]  # of the pieces among the channels
    weights: Sequence[Tensor] = [
        torch.cat([first[i][:, starts[read[0]] : starts[read[-1] + 1], 0, 0] for i in layers])
        for read, layers in reads
        if layers
    ]
    kernels: Sequence[Tensor] | None = None
    if halves.serves(x) and not torch.is_grad_enabled() and all(type(conv) is nn.Conv2d for conv in second):
        dtype = torch.get_autocast_dtype("cuda")
        weights, kernels = halves.convert(weights, dtype), halves.convert([conv.weight for conv in second], dtype)
    for turn, (read, layers) in enumerate(reads):
        if turn:
            conv: Any = second[turn - 1]
            active = F.relu(as_map(reduce(torch.add, parts[turn - 1]), x))
            pieces.append(conv(active) if kernels is None else conv._conv_forward(active, kernels[turn - 1], conv.bias))
        if layers:
            matrix = [rows(pieces[i]) for i in read]
            together = F.relu(torch.cat(matrix, dim=1) if len(matrix) > 1 else matrix[0])
            made = product(together, weights[turn], parts=len(x)).split([len(first[i]) for i in layers], dim=1)
            for i, part in zip(layers, made, strict=True):
                parts[i].append(part)
    return pieces


def _reads(count: int) -> list[tuple[range, range]]:
    """Return which pieces are read by which layers when so many pieces are there, one, two and so on."""
    found = [(range(1), range(count))]
    for made in range(1, count + 1):
        recent = made % GROUP
        if recent:
            found.append((range(made, made + 1), range(made, min(made + GROUP - recent, count))))
        else:
            found.append((range(made + 1 - GROUP, made + 1), range(made, count)))
    return found


def product(x: Tensor, weight: Tensor, *, parts: int) -> Tensor:
    """Return x @ weight^T of very many rows, N, out.

    Args:
        x: N, in.
        weight: out, in.
        parts: groups of rows that the weight's gradient is summed over apart: libraries share a product out among the
            multiprocessors by its result, and that is small.
    """
    x = as_products_read(x)
    return _Product.apply(x, weight.to(x.dtype), parts)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, parts: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parts = parts
        return x @ weight.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        of_x = grad @ weight if ctx.needs_input_grad[0] else None
        of_weight = None
        if ctx.needs_input_grad[1]:
            slope, rows = (matrix.unflatten(0, (ctx.parts, -1)) for matrix in (grad, x))
            partial = torch.bmm(slope.mT, rows)
            of_weight = upcast(partial).sum(0).to(weight.dtype)
        return of_x, of_weight, None


def pooled_transition(pieces: Sequence[Tensor], norm: nn.Module, conv: nn.Module, pool: nn.Module) -> Tensor | None:
    """Return what norm, 1x1 convolution and average pooling make of pieces, None where that is not known to be linear.

    Args:
        pieces: channels side by side, B, C, H, W each.
        norm: a batch norm, or what is left of one.
        conv: the convolution.
        pool: the pooling, or nothing.
    """
    if isinstance(norm, nn.Identity) or (
        isinstance(norm, nn.modules.batchnorm._BatchNorm) and not norm.training and norm.running_mean is not None
    ):
        if type(conv) is nn.Conv2d and torch.compiler.is_compiling():
            matrix, (weight, bias) = pooled_rows(pieces, pool), folded(norm, conv)
            bias = None if bias is None else bias.to(matrix.dtype)
            return as_map(F.linear(matrix, weight.to(matrix.dtype), bias), pool(pieces[0]))
        return conv(norm(torch.cat([pool(piece) for piece in pieces], dim=1)))
    # outside a compiler the parts of a norm take longer than the whole
    if type(norm) is not nn.BatchNorm2d or not norm.affine or not torch.compiler.is_compiling():
        return None
    found = [Moments.apply(rows(piece)) for piece in pieces]
    mean, variance = (torch.cat(parts) for parts in zip(*found, strict=True))
    if norm.running_mean is not None:
        track(norm, mean.detach(), variance.detach(), pieces[0].numel() // pieces[0].shape[1])
    pooled = torch.cat([pool(piece) for piece in pieces], dim=1)
    scale = norm.weight * (variance + norm.eps).rsqrt()
    whole = (pooled - mean.view(-1, 1, 1)) * scale.view(-1, 1, 1) + norm.bias.view(-1, 1, 1)
    return conv(whole.to(pooled.dtype))


def pooled_rows(pieces: Sequence[Tensor], pool: nn.Module) -> Tensor:
    """Return pieces, pooled and side by side, as a matrix B * H' * W', C.

    A compiler makes one kernel of up to eight inputs, and that asks of every number which of them it is of. Of more it
    has each written to its place by a kernel of its own.
    """
    parts = list(pieces)
    while len(parts) <= JOINED and parts[0].shape[1] >= 2 * LEAST:
        parts[:1] = parts[0].chunk(2, dim=1)
    return torch.cat([rows(pool(part)) for part in parts], dim=1)


def folded(norm: nn.Module, conv: nn.Conv2d) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of a 1x1 convolution with the norm before it, a batch norm in evaluation or none."""
    weight, bias = conv.weight[:, :, 0, 0], conv.bias
    if isinstance(norm, nn.Identity):
        return weight, bias
    scale, shift = line_of(norm, upcast)
    moved = (weight * shift).sum(1)
    return weight * scale, moved if bias is None else moved + bias


class Moments(torch.autograd.Function):
    """Mean and biased variance of a matrix's columns, in at least float32; their gradient is a line in its values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance."""
        variance, mean = torch.var_mean(upcast(x), 0, correction=0)
        ctx.save_for_backward(x, mean)
        return mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_mean: Tensor, of_variance: Tensor) -> Tensor:
        """Return the gradient towards the matrix."""
        x, mean = ctx.saved_tensors
        slope = of_variance * (2 / len(x))
        return (slope * x + (of_mean / len(x) - slope * mean)).to(x.dtype)


def track(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor, count: int) -> None:
    """Move a norm's running statistics towards a batch's, as it does itself."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)
        share = norm.num_batches_tracked.to(mean.dtype).reciprocal() if norm.momentum is None else norm.momentum
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
        norm.running_var.lerp_((variance * (count / max(1, count - 1))).to(norm.running_var.dtype), share)
