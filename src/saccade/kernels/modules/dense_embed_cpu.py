"""SoT's dense embedding on the CPU, a few images at a time: their maps stay in the cache.

The transition is linear, so it is applied behind the average pooling that follows it, to a quarter of the positions.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...layers.padding import pad_to
from ...layers.token_embed import DenseBlock, DenseNetEmbed, Transition
from ..fused import Fused
from ..ops.dense_block_cpu import DenseBlockInParts, pooled_dense_block
from ..ops.positions import as_map, rows
from ..ops.stem_cpu import StemInBands, stem_in_bands
from .dense_parts import folded, has_norms, stages, track


class DenseNetEmbedInParts(Fused, DenseNetEmbed):
    """Stem and dense blocks a few images at a time, in full precision."""

    plain = DenseNetEmbed

    @classmethod
    def refuses(cls, module: DenseNetEmbed) -> str | None:
        """Why this embedding cannot be replaced, or None."""
        return "its dense layers have batch norms" if has_norms(module) else None

    def takes(self, x: Tensor) -> bool:
        """Whether operators run one by one on the CPU in full precision."""
        return (
            eager(x)
            and x.device.type == "cpu"
            and x.dtype == self.weight.dtype
            and x.dtype in (torch.float32, torch.float64)
            and not torch.is_autocast_enabled("cpu")
            and len(x) > 0
            and all(_is_linear(transition.norm) for _, transition in stages(self))
        )

    def fused(self, x: Tensor) -> Tensor:
        """Return a map of tokens, B, embed_dim, H, W."""
        conv = cast(nn.Conv2d, self.stem[0])
        stem = StemInBands.apply if torch.is_grad_enabled() else stem_in_bands
        x = stem(pad_to(x, self.stride - 1), conv.weight, cast(Tensor, conv.bias))
        for block, transition in stages(self):
            x = pooled_stage(x, block, transition)
        return self.proj(x)


def eager(x: Tensor) -> bool:
    """Whether operators run one by one: no compiler, no tracer, no transform."""
    return (
        not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._are_functorch_transforms_active()
        and type(x) is Tensor  # a tracer's stand-in is not
    )


def _is_linear(norm: nn.Module) -> bool:
    """Whether a transition's norm is a batch norm, or nothing where it was folded into its convolution."""
    return type(norm) in (nn.BatchNorm2d, nn.Identity) and bool(getattr(norm, "affine", True))


def pooled_stage(x: Tensor, block: DenseBlock, transition: Transition) -> Tensor:
    """Return what a transition makes of a block's output, B, C, H', W', without making that output."""
    layers: Sequence[Any] = list(block.layers)
    first, kernels = [layer.conv1.weight for layer in layers], [layer.conv2.weight for layer in layers]
    norm, halve = transition.norm, not isinstance(transition.pool, nn.Identity)
    if not isinstance(norm, nn.BatchNorm2d) or not (norm.training or norm.running_mean is None):
        if torch.is_grad_enabled():
            pooled = DenseBlockInParts.apply(x, halve, *first, *kernels)[0]
        else:
            pooled = pooled_dense_block(x, first, kernels, halve=halve)
        return as_map(F.linear(rows(pooled), *folded(norm, transition.conv)), pooled)
    pooled, mean, variance = DenseBlockInParts.apply(x, halve, *first, *kernels)
    if norm.running_mean is not None:
        track(norm, mean.detach(), variance.detach(), len(x) * x.shape[2] * x.shape[3])
    scale = norm.weight * (variance + norm.eps).rsqrt()
    matrix = transition.conv.weight[:, :, 0, 0]
    return as_map(F.linear(rows(pooled), matrix * scale, matrix @ (norm.bias - mean * scale)), pooled)
