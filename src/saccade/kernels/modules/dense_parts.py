"""What the replacements of SoT's token embedding share: questions about a call, and batch norms taken apart."""

import torch
from torch import Tensor, nn

from ...layers.numerics import upcast
from ...layers.token_embed import DenseBlock, DenseNetEmbed, Transition


def is_exporting() -> bool:
    """Whether `torch.export` runs, and not `torch.compile`; torch 2.11's own answer is yes wherever it compiles."""
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))


def compiles_for_gpu(x: Tensor) -> bool:
    """Whether what reads a tensor is being compiled for the GPU that holds it."""
    return torch.compiler.is_compiling() and not is_exporting() and x.is_cuda


def as_products_read(x: Tensor) -> Tensor:
    """Return `x` in the precision that autocast on a GPU brings it to in every product: converted and kept once."""
    autocasts = x.is_cuda and torch.is_autocast_enabled("cuda")
    return x.to(torch.get_autocast_dtype("cuda")) if autocasts else x


def stages(embed: DenseNetEmbed) -> list[tuple[DenseBlock, Transition]]:
    """Return the dense blocks, each with its transition."""
    return list(zip(embed.blocks[::2], embed.blocks[1::2], strict=True))  # type: ignore[arg-type]


def has_norms(embed: DenseNetEmbed) -> bool:
    """Whether there are batch norms inside the dense layers."""
    layers = (layer for block, _ in stages(embed) for layer in block.layers)
    return not all(isinstance(layer.norm1, nn.Identity) and isinstance(layer.norm2, nn.Identity) for layer in layers)


def folded(norm: nn.Module, conv: nn.Conv2d) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of a 1x1 convolution with the norm before it, a batch norm in evaluation or none."""
    weight, bias = conv.weight[:, :, 0, 0], conv.bias
    if isinstance(norm, nn.Identity):
        return weight, bias
    scale, shift = line_of(norm)
    moved = (weight * shift).sum(1)
    return weight * scale, moved if bias is None else moved + bias


def line_of(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return what a batch norm does to every channel in evaluation: times the first, plus the second."""
    assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
    assert norm.running_var is not None
    assert norm.running_mean is not None
    scale = (upcast(norm.running_var) + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * upcast(norm.weight)
    shift = -upcast(norm.running_mean) * scale
    return scale, shift if norm.bias is None else shift + upcast(norm.bias)


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
