"""Patch embeddings of a pyramid: maps of a quarter, then of half the side, from patches that overlap or tile."""

from collections import OrderedDict

import torch.nn.functional as F
from timm.models import register_notrace_module
from torch import Tensor, nn


@register_notrace_module
class PatchConv(nn.Conv2d):
    """Convolution by patches that tile the map; what is left over at the far edges is not read.

    A map smaller than one patch is padded with zeros to one, lest it vanish.
    """

    def __init__(self, in_dim: int, dim: int, *, patch: int, bias: bool = True) -> None:
        super().__init__(in_dim, dim, patch, stride=patch, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return B, dim, H / patch, W / patch, at least one by one."""
        height, width = x.shape[2:]
        if isinstance(height, int) and isinstance(width, int):
            bottom, right = max(self.kernel_size[0] - height, 0), max(self.kernel_size[1] - width, 0)
            if bottom or right:
                x = F.pad(x, (0, right, 0, bottom))
        return super().forward(x)


def overlapping_stem(in_chans: int, dim: int, *, patch: int = 4) -> nn.Sequential:
    """Build two 3x3 convolutions, each before a batch norm, of stride 2 as far as the patch asks for it."""
    if patch not in (1, 2, 4):
        raise ValueError(f"patch={patch} was given; the overlapping patches of a stem must have a stride of 1, 2 or 4")
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(in_chans, dim // 2, 3, stride=2 if patch == 4 else 1, padding=1),
            norm1=nn.BatchNorm2d(dim // 2),
            act=nn.GELU(),
            conv2=nn.Conv2d(dim // 2, dim, 3, stride=1 if patch == 1 else 2, padding=1),
            norm2=nn.BatchNorm2d(dim),
        )
    )


def overlapping_downsample(in_dim: int, dim: int) -> nn.Sequential:
    """Build a 3x3 convolution of stride 2, then a batch norm."""
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(in_dim, dim, 3, stride=2, padding=1),
            norm=nn.BatchNorm2d(dim),
        )
    )


def patch_stem(in_chans: int, dim: int, *, patch: int = 4) -> nn.Sequential:
    """Build an embedding of square patches, then a batch norm."""
    return nn.Sequential(
        OrderedDict(
            conv=PatchConv(in_chans, dim, patch=patch),
            norm=nn.BatchNorm2d(dim),
        )
    )


def patch_downsample(in_dim: int, dim: int) -> nn.Sequential:
    """Build a batch norm, then an embedding of 2x2 patches."""
    return nn.Sequential(
        OrderedDict(
            norm=nn.BatchNorm2d(in_dim),
            conv=PatchConv(in_dim, dim, patch=2),
        )
    )
