"""Feature pyramid network, and RoIAlign over all scales at once."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .region_features import region_features

CANONICAL = 224.0  # side of a box assigned to stride 16


class FPN(nn.Module):
    """Feature pyramid network (Lin et al., 2017).

    Args:
        more: additional coarser maps: "pool" (one, by subsampling), "coarsest" or "input" (two, by strided convolutions
            of the pyramid's coarsest map or the backbone's), "none".
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
    """Maps of several scales side by side in one tensor."""

    map: Tensor  # B, C, H, W
    left: tuple[float, ...]  # first column of each map
    stride: tuple[float, ...]  # stride of each map in pixels


def pack(maps: Sequence[Tensor], strides: Sequence[float]) -> Packed:
    """Pack maps side by side, each padded with its border cells, so that RoIAlign does not mix scales.

    A single RoIAlign over all proposals replaces one for each scale, whose numbers of proposals are not static; the
    result is the same.
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
    """Return the pyramid level of each box, ..., N, by its size.

    Args:
        finest: stride of the finest map in pixels.
    """
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0)
    side = (sides[..., 0] * sides[..., 1]).sqrt()
    level = torch.floor(4 + torch.log2(side / CANONICAL + 1e-6)) - math.log2(finest)
    return level.clamp(0, levels - 1).to(torch.int64)


def look_at(packed: Packed, boxes: Tensor, side: int, *, aligned: bool = False) -> Tensor:
    """RoIAlign of boxes, B * N, C, side, side, each from the level for its size.

    Args:
        aligned: shift by half a cell, as newer code does.
    """
    batch, count = boxes.shape[:2]
    level = level_of(boxes, len(packed.left), finest=packed.stride[0])
    boxes = boxes / _of_level(packed.stride, level)[..., None]
    left = _of_level(packed.left, level)
    shift = torch.stack([left, torch.ones_like(left)], dim=-1).repeat(1, 1, 2)
    numbers = torch.arange(batch, device=boxes.device, dtype=boxes.dtype).repeat_interleave(count)
    rows = torch.cat([numbers[:, None], (boxes + shift).reshape(-1, 4)], dim=1)
    return region_features(packed.map.float(), rows, side, aligned=aligned)  # half precision loses pixels


def _of_level(values: Sequence[float], level: Tensor) -> Tensor:
    """Select a value by level, without copying a table to the device."""
    found = torch.full_like(level, values[0], dtype=torch.float32)
    for number, value in enumerate(values[1:], 1):
        found = torch.where(level == number, value, found)
    return found
