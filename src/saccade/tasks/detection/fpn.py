"""The feature pyramid network, and the maps of all scales packed into one for a single RoIAlign."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import roi_align

CANONICAL = 224.0  # side of a box that belongs to the map of 16 pixels a cell


class FPN(nn.Module):
    """Maps of one width at every scale, coarse ones added to finer ones (Lin et al., 2017).

    Args:
        more: coarser maps besides: "pool" (one, every second cell of the coarsest), "coarsest" or "input" (two, by
            strided convolutions of its own coarsest map or the backbone's), "none".
    """

    def __init__(self, channels: Sequence[int], width: int = 256, *, more: str = "pool") -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Conv2d(channel, width, 1) for channel in channels)
        self.outer = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in channels)
        self.width, self.more = width, more
        self.levels = len(channels) + {"none": 0, "pool": 1, "coarsest": 2, "input": 2}[more]
        if self.levels == len(channels) + 2:
            first = channels[-1] if more == "input" else width
            self.down = nn.ModuleList(nn.Conv2d(size, width, 3, 2, 1) for size in (first, width))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, a=1)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return maps, B, width, H, W, finest first."""
        sums = [layer(one) for layer, one in zip(self.inner, maps, strict=True)]
        for number in range(len(sums) - 1, 0, -1):
            shape = sums[number - 1].shape[-2:]
            sums[number - 1] = sums[number - 1] + F.interpolate(sums[number], shape, mode="nearest")
        found = [layer(one) for layer, one in zip(self.outer, sums, strict=True)]
        if self.more == "pool":
            found.append(F.max_pool2d(found[-1], 1, 2))
        elif self.more != "none":
            found.append(self.down[0](maps[-1] if self.more == "input" else found[-1]))
            found.append(self.down[1](F.relu(found[-1])))
        return found


class Packed(NamedTuple):
    """Maps of several scales side by side in one."""

    map: Tensor  # B, C, H, W
    left: tuple[float, ...]  # column at which each begins
    stride: tuple[float, ...]  # pixels from cell to cell of each


def pack(maps: Sequence[Tensor], strides: Sequence[float]) -> Packed:
    """Return maps side by side, each in a frame of its own last cells, so that no sample sees another scale.

    One RoIAlign over all proposals takes the place of one for each scale over as many as fall on it, which is not known
    before; what it gives is the same.
    """
    height, start = max(one.shape[-2] for one in maps) + 2, 0
    left: list[float] = []
    parts = []
    for one in maps:
        framed = F.pad(one.float(), (1, 1, 1, 1), mode="replicate").to(one.dtype)
        parts.append(F.pad(framed, (0, 0, 0, height - framed.shape[-2])))
        left.append(start + 1)
        start += framed.shape[-1]
    return Packed(torch.cat(parts, dim=-1), tuple(left), tuple(strides))


def level_of(boxes: Tensor, levels: int, *, finest: float) -> Tensor:
    """Return the scale each box is looked at on, ..., N: where it has about as many cells as any other.

    Args:
        finest: pixels from cell to cell of the finest.
    """
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0)
    side = (sides[..., 0] * sides[..., 1]).sqrt()
    level = torch.floor(4 + torch.log2(side / CANONICAL + 1e-6)) - math.log2(finest)
    return level.clamp(0, levels - 1).to(torch.int64)


def look_at(packed: Packed, boxes: Tensor, side: int, *, aligned: bool = False) -> Tensor:
    """Return what lies in boxes, B * N, C, side, side, each from the scale that fits its size.

    Args:
        aligned: shift by half a cell, as later code does.
    """
    batch, count = boxes.shape[:2]
    level = level_of(boxes, len(packed.left), finest=packed.stride[0])
    boxes = boxes / _of_level(packed.stride, level)[..., None]
    left = _of_level(packed.left, level)
    shift = torch.stack([left, torch.ones_like(left)], dim=-1).repeat(1, 1, 2)
    numbers = torch.arange(batch, device=boxes.device, dtype=boxes.dtype).repeat_interleave(count)
    rows = torch.cat([numbers[:, None], (boxes + shift).reshape(-1, 4)], dim=1)
    # Two points a cell and side; half precision loses pixels.
    return roi_align(packed.map.float(), rows, side, 1.0, 2, aligned=aligned)


def _of_level(values: Sequence[float], level: Tensor) -> Tensor:
    """Return each level's value, without a table on the device that would have to be copied there."""
    found = torch.full_like(level, values[0], dtype=torch.float32)
    for number, value in enumerate(values[1:], 1):
        found = torch.where(level == number, value, found)
    return found
