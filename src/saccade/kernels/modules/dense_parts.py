"""What the replacements of SoT's token embedding share: its blocks, and batch norms taken apart."""

import torch
from torch import Tensor, nn

from ...layers.numerics import line_of, upcast
from ...layers.token_embed import DenseBlock, DenseNetEmbed, Transition
from ..fused import Fused


def stages(embed: DenseNetEmbed) -> list[tuple[DenseBlock, Transition]]:
    """Return the dense blocks, each with its transition."""
    return list(zip(embed.blocks[::2], embed.blocks[1::2], strict=True))  # type: ignore[arg-type]


class FusedEmbed(Fused):
    """A replacement of the embedding whose dense layers have no norms."""

    @classmethod
    def refuses(cls, module: DenseNetEmbed) -> str | None:
        """Why this embedding cannot be replaced, or None."""
        norms = [norm for block, _ in stages(module) for layer in block.layers for norm in (layer.norm1, layer.norm2)]
        return None if all(isinstance(norm, nn.Identity) for norm in norms) else "its dense layers have batch norms"


def folded(norm: nn.Module, conv: nn.Conv2d) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of a 1x1 convolution with the norm before it, a batch norm in evaluation or none."""
    weight, bias = conv.weight[:, :, 0, 0], conv.bias
    if isinstance(norm, nn.Identity):
        return weight, bias
    scale, shift = line_of(norm, upcast)
    moved = (weight * shift).sum(1)
    return weight * scale, moved if bias is None else moved + bias


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
