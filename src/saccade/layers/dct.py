"""CGCA of NomMer, compressed global context aggregator: attention between the low frequencies of a map's blocks."""

import math
from collections.abc import Callable
from typing import Self

import torch
from timm.layers import Attention
from torch import Tensor, nn

from .window import crop, extend, tile, untile


class DCTAttention(nn.Module):
    """CGCA (Algorithm 1, lines 1-6): attention between the blocks of a map, each seen through its low frequencies.

    A map that is no whole number of blocks is continued by its last row and column, and the result is cropped.

    Args:
        dim: channels; a multiple of `groups`.
        num_heads: attention heads.
        block_size: side of a block (ksize of table 3); the lower half of its frequencies is kept along each axis.
        groups: groups of channels that LFP and Conv keep apart (published code).
    """

    basis: Tensor

    def __init__(self, dim: int, *, num_heads: int, block_size: int, groups: int = 8) -> None:
        super().__init__()
        if block_size < 1:
            raise ValueError(f"block_size={block_size} was given; it must be 1 or more")
        if dim % groups:
            raise ValueError(
                f"dim={dim} is not a multiple of the {groups} groups of the frequency layers; choose a multiple"
            )
        self.block_size = block_size
        # A constant: not saved, and rebuilt by `_apply` rather than converted.
        self.register_buffer("basis", dct_basis(block_size), persistent=False)
        kept = self.basis.shape[0]
        self.perceive = GroupedLinear(kept * dim, dim, groups=groups)  # LFP, low-frequency perceiver
        self.norm = nn.BatchNorm2d(dim)  # of LFP (published code)
        self.attn = plain_attention(dim, num_heads)  # G-MHSA
        self.restore = GroupedLinear(dim, kept * dim, groups=groups)  # Conv of line 4

    def forward(self, x: Tensor) -> Tensor:
        """Mix a map globally.

        Args:
            x: map F, B, H, W, C.

        Returns:
            Map F^(G), B, H, W, C.
        """
        return self.expand(self.attn(self.compress(x)), (x.shape[1], x.shape[2]))

    def compress(self, x: Tensor) -> Tensor:
        """Return one token for every block of a map (B, H, W, C), in row-major order: B, blocks, C."""
        side, groups, B = self.block_size, self.perceive.groups, x.shape[0]
        x = tile(extend(x, side), side).contiguous().flatten(3, 4).flatten(0, 2)  # blocks, side * side, C
        x = torch.matmul(self.basis.to(x.dtype), x)  # Algorithm 1, line 2, DCT: blocks, frequencies, C
        x = x.unflatten(2, (groups, -1)).permute(2, 0, 1, 3).flatten(2)  # groups, blocks, frequencies * C / groups
        x = self.perceive(x).transpose(0, 1).flatten(1)  # Algorithm 1, line 3, LFP: blocks, C
        # Statistics are over blocks of all maps: to the norm, each block may as well be a map of one pixel.
        return self.norm(x[:, :, None, None]).flatten(1).unflatten(0, (B, -1))

    def expand(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the map (B, H, W, C) of a size that the tokens of its blocks (B, blocks, C) stand for."""
        side, groups = self.block_size, self.restore.groups
        rows, columns = ((n + side - 1) // side for n in size)
        B, width = x.shape[0], x.shape[2] // groups
        x = x.flatten(0, 1).unflatten(1, (groups, width)).transpose(0, 1)  # groups, blocks, C / groups
        x = self.restore(x).unflatten(2, (-1, width))  # Algorithm 1, line 4, Conv
        x = x.permute(1, 2, 0, 3).flatten(2)  # blocks, frequencies, C
        x = torch.matmul(self.basis.to(x.dtype).mT, x)  # Algorithm 1, line 5, IDCT: blocks, side * side, C
        return crop(untile(x.unflatten(1, (side, side)).unflatten(0, (B, rows, columns))), size)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # A model that went through half precision or through the meta device gets the exact constant back.
        super()._apply(fn, recurse)
        self.basis = dct_basis(self.block_size).to(self.basis)
        return self


class GroupedLinear(nn.Module):
    """LFP and Conv of Algorithm 1, a 1x1 convolution in groups without a bias (published code), as a batch of products.

    The weight is groups, in / groups, out / groups; LFP's in and Conv's out list the kept frequencies of a group's
    channels, frequency first. `pack_grouped` brings the weight of a convolution into this form.
    """

    def __init__(self, in_features: int, out_features: int, *, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.empty(groups, in_features // groups, out_features // groups))
        bound = 1 / math.sqrt(in_features // groups)  # PyTorch's default for the convolution it stands for
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Map groups, N, in / groups to groups, N, out / groups."""
        return torch.bmm(x, self.weight)


def dct_basis(side: int) -> Tensor:
    """Orthonormal DCT-II of a square block, low half of the frequencies per axis, rounded to float32 from float64.

    Returns:
        Matrix r * r, side * side: a row is a frequency (vertical first), a column a place, both in row-major order.
    """
    kept = (side + 1) // 2  # r
    place = (2 * torch.arange(side, dtype=torch.float64, device="cpu") + 1) * (math.pi / (2 * side))
    wave = torch.cos(torch.arange(kept, dtype=torch.float64, device="cpu")[:, None] * place)  # r, side
    wave[0] /= math.sqrt(2)
    basis = 2 / side * wave[:, None, :, None] * wave[None, :, None, :]  # v, u, y, x
    return basis.reshape(kept**2, side**2).float()


def pack_grouped(weight: Tensor, *, groups: int, frequencies_in: int = 1, frequencies_out: int = 1) -> Tensor:
    """Bring the weight of a grouped 1x1 convolution whose channels are (channel, frequency) to `GroupedLinear`'s form.

    Args:
        weight: out, in / groups, 1, 1.
        groups: groups of the convolution.
        frequencies_in: kept frequencies of an input channel.
        frequencies_out: kept frequencies of an output channel.
    """
    weight = weight.reshape(groups, -1, frequencies_out, weight.shape[1] // frequencies_in, frequencies_in)
    weight = weight.permute(0, 4, 3, 2, 1)  # groups, frequency, channel, frequency, channel
    return weight.flatten(3).flatten(1, 2).contiguous()


def plain_attention(dim: int, num_heads: int) -> nn.Module:
    """Build G-MHSA: queries, keys and values have no bias, a single head has no output layer (published code)."""
    if dim % num_heads:
        raise ValueError(f"num_heads={num_heads} does not divide dim={dim}; choose a divisor of it")
    attention: nn.Module = Attention(dim, num_heads=num_heads, qkv_bias=False)
    if num_heads == 1:
        attention.proj = nn.Identity()
    return attention
