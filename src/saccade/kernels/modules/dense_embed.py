"""SoT's dense embedding on a GPU: 1x1 convolutions as products of rows, and pooling before the transition.

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

from ...layers.padding import pad_to
from ...layers.token_embed import DenseBlock, DenseNetEmbed, Transition
from ..ops.moments import Moments
from ..ops.positions import as_map, rows
from ..ops.row_product import RowProduct
from ..precision import as_products_read, convert, converts
from .dense_parts import FusedEmbed, folded, stages, track

GROUP = 3  # new pieces that later layers read side by side
JOINED = 8  # inputs of a concatenation that Inductor joins in one kernel
MIN_CHANNELS = 16  # channels that are worth a kernel: a sector of memory


class FusedDenseNetEmbed(FusedEmbed, DenseNetEmbed):
    """Dense blocks as products of rows, transitions behind their pooling."""

    plain = DenseNetEmbed

    def takes(self, x: Tensor) -> bool:
        """Whether there are images on a GPU; a tracer's stand-in cannot say."""
        return type(x) is Tensor and x.is_cuda and len(x) > 0 and not torch.jit.is_tracing()

    def fused(self, x: Tensor) -> Tensor:
        """Return a map of tokens, B, embed_dim, H, W."""
        x = self.stem(pad_to(x, self.stride - 1))
        for block, transition in stages(self):
            pieces = pieces_by_rows(x, block)
            pooled = pooled_transition(pieces, transition)
            x = transition(torch.cat(pieces, dim=1)) if pooled is None else pooled
        return self.proj(x)


def pieces_by_rows(x: Tensor, block: DenseBlock) -> list[Tensor]:
    """Return the input of a dense block, B, C, H, W, and each layer's new channels, B, growth, H, W.

    A layer's first convolution is a sum of products over what it reads. The input goes through one product for all
    layers. New pieces do so three at a time, for all layers after them; until there are three, each by itself for the
    layers up to then. That writes and reads the fewest numbers.
    """
    layers: Sequence[Any] = list(block.layers)
    first, second = [layer.conv1.weight for layer in layers], [layer.conv2 for layer in layers]
    pieces = [x]
    parts: list[list[Tensor]] = [[] for _ in first]  # of each layer's sum, as they come
    reads = _reads(len(first))
    starts = [0, *(weight.shape[1] for weight in first)]  # of the pieces among the channels
    weights: Sequence[Tensor] = [
        torch.cat([first[i][:, starts[read[0]] : starts[read[-1] + 1], 0, 0] for i in readers])
        for read, readers in reads
        if readers
    ]
    kernels: Sequence[Tensor] | None = None
    if not torch.is_grad_enabled() and converts(x) and all(type(conv) is nn.Conv2d for conv in second):
        dtype = torch.get_autocast_dtype("cuda")
        weights, kernels = convert(weights, dtype), convert([conv.weight for conv in second], dtype)
    for turn, (read, readers) in enumerate(reads):
        if turn:
            conv = second[turn - 1]
            active = F.relu(as_map(reduce(torch.add, parts[turn - 1]), x))
            pieces.append(conv(active) if kernels is None else conv._conv_forward(active, kernels[turn - 1], conv.bias))
        if readers:
            matrix = [rows(pieces[i]) for i in read]
            together = F.relu(torch.cat(matrix, dim=1) if len(matrix) > 1 else matrix[0])
            made = product(together, weights[turn], parts=len(x)).split([len(first[i]) for i in readers], dim=1)
            for i, part in zip(readers, made, strict=True):
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
    """Return x @ weight^T of very many rows in the precision that products have; see `RowProduct`."""
    x = as_products_read(x)
    return RowProduct.apply(x, weight.to(x.dtype), parts)


def pooled_transition(pieces: Sequence[Tensor], transition: Transition) -> Tensor | None:
    """Return what a transition makes of pieces, B, C, H, W each, or None where it is not known to be linear."""
    norm, conv, pool = transition.norm, transition.conv, transition.pool
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
    while len(parts) <= JOINED and parts[0].shape[1] >= 2 * MIN_CHANNELS:
        parts[:1] = parts[0].chunk(2, dim=1)
    return torch.cat([rows(pool(part)) for part in parts], dim=1)
