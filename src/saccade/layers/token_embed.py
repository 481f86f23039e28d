"""Token embedding of SoT (supplement A, figure S-1): stem, three blocks, 1x1 convolution, to a map of tokens."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .padding import pad_to

STEM_WIDTH = 64  # channels of the stem, as in the published code


class Stem(nn.Sequential):
    """Stem of supplement A: 3x3 convolution with a bias, max pooling of stride 2; no norm, no activation."""


class TokenEmbed(nn.Module):
    """Stem, blocks that halve the map, 1x1 projection to the token width.

    Args:
        blocks: what stands between stem and projection.
        width: channels the blocks return.
        in_chans: image channels.
        embed_dim: token width.
        stride: image pixels a token.
    """

    def __init__(self, blocks: list[nn.Module], width: int, *, in_chans: int, embed_dim: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.stem = Stem(nn.Conv2d(in_chans, STEM_WIDTH, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1))
        self.blocks = nn.Sequential(*blocks)
        self.proj = nn.Conv2d(width, embed_dim, 1)

    @property
    def weight(self) -> Tensor:
        """The last projection's; hosts look at it to tell the precision."""
        return self.proj.weight

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the token grid for an image size: every downsampling rounds up."""
        return -(-height // self.stride), -(-width // self.stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of tokens, B, embed_dim, H, W."""
        return self.proj(self.blocks(self.stem(x)))


def block_strides(stride: int) -> tuple[int, int, int]:
    """Return the strides of the three blocks, 2 or 1, that make `stride` with the stem's 2.

    All are 2 at stride 16, for images of 224 pixels. At 8 the last one is 1 (the 7-layer SoT, supplement A, for images
    of 112), at 4 the last two are (for Swin's finer grid; published code).
    """
    if stride not in (4, 8, 16):
        raise ValueError(f"stride={stride} was given; a convolutional token embedding supports 4, 8 and 16")
    return 2, 2 if stride >= 8 else 1, 2 if stride == 16 else 1


class DenseNetEmbed(TokenEmbed):
    """Three dense blocks with pooled transitions; the embedding of every published SoT.

    Args:
        in_chans: image channels.
        embed_dim: token width.
        stride: image pixels a token; 4, 8 or 16.
        norm: batch norm in front of each ReLU inside the dense layers. The published code leaves it to the version of
            timm: without in the pinned one (default), with from timm 0.6 on.
    """

    compiles_whole: ClassVar[bool] = True  # as one block: its layers are too small to be compiled one by one

    def __init__(self, *, in_chans: int = 3, embed_dim: int = 240, stride: int = 16, norm: bool = False) -> None:
        blocks: list[nn.Module] = []
        width = STEM_WIDTH
        for block_stride in block_strides(stride):
            block = DenseBlock(width, norm=norm)
            blocks += [block, Transition(block.width, 128, halve=block_stride == 2)]
            width = 128
        super().__init__(blocks, width, in_chans=in_chans, embed_dim=embed_dim, stride=stride)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the token grid: the stem's pooling rounds up, the transitions' round down, none below one."""
        pool = self.stride // 2
        return max(1, (height + 1) // 2 // pool), max(1, (width + 1) // 2 // pool)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of tokens, B, embed_dim, H, W."""
        return super().forward(pad_to(x, self.stride - 1))  # the least side that leaves one token


class DenseBlock(nn.Module):
    """Layers that each read everything before them and add `growth` channels."""

    def __init__(self, width: int, *, depth: int = 6, growth: int = 16, norm: bool = False) -> None:
        super().__init__()
        self.width = width + depth * growth  # of what forward returns
        self.layers = nn.ModuleList(DenseLayer(width + index * growth, growth, norm=norm) for index in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input and all new channels, B, width, H, W."""
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        return x


class DenseLayer(nn.Module):
    """ReLU, 1x1 convolution, ReLU, 3x3 convolution; `norm` puts a batch norm in front of each ReLU."""

    def __init__(self, width: int, growth: int, *, norm: bool) -> None:
        super().__init__()
        hidden = 2 * growth
        self.norm1 = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.conv1 = nn.Conv2d(width, hidden, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(hidden) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(hidden, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the new channels, B, growth, H, W."""
        return self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))


class Transition(nn.Module):
    """Batch norm without ReLU, 1x1 convolution and, if it halves, 2x2 average pooling."""

    def __init__(self, width: int, out: int, *, halve: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, out, 1, bias=False)
        self.pool = nn.AvgPool2d(2) if halve else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return B, out, H', W'."""
        return self.pool(self.conv(self.norm(x)))
