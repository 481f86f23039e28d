"""RoIAlign: features of boxes, by bilinear interpolation at two samples a cell and side."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import roi_align

SAMPLES = 2  # a cell and side
TAPS = 2 * SAMPLES  # map cells that a cell of the result reads, along a side


def region_features(maps: Tensor, rows: Tensor, side: int, *, aligned: bool = False) -> Tensor:
    """Return features of boxes, N, C, side, side.

    In training on a CPU they are weighted sums of map cells, several times as fast as torchvision's with its gradient.
    Without a gradient they are torchvision's, to the bit the same in any batch.

    Args:
        maps: B, C, H, W, of two cells a side or more.
        rows: number of the map, and box in its cells, N, 5; without gradient.
        aligned: shift by half a cell, as newer code does.
    """
    if maps.device.type != "cpu" or not maps.requires_grad:
        return roi_align(maps, rows, side, 1.0, SAMPLES, aligned=aligned)
    _, channels, height, width = maps.shape
    rows = rows.detach()
    across, down = (
        _taps(rows[:, axis], rows[:, axis + 2], side, size, aligned) for axis, size in ((1, width), (2, height))
    )
    first = rows[:, 0].long()[:, None, None, None, None] * (height * width)
    places = first + down[0][:, :, None, :, None] * width + across[0][:, None, :, None, :]
    weights = down[1][:, :, None, :, None] * across[1][:, None, :, None, :]
    cells = maps.permute(0, 2, 3, 1).reshape(-1, channels)  # a cell's channels lie together
    found = F.embedding_bag(
        places.reshape(-1, TAPS**2), cells, mode="sum", per_sample_weights=weights.reshape(-1, TAPS**2)
    )
    return found.view(len(rows), side, side, channels).permute(0, 3, 1, 2)


def _taps(low: Tensor, high: Tensor, side: int, size: int, aligned: bool) -> tuple[Tensor, Tensor]:
    """Return the map cells that each cell of the result reads along an axis, and their weights, N, side, `TAPS`."""
    length = high - low
    low, length = (low - 0.5, length) if aligned else (low, length.clamp(min=1.0))
    steps = (torch.arange(side * SAMPLES, device=low.device) + 0.5) / (side * SAMPLES)
    place = low[:, None] + length[:, None] * steps
    inside = (place >= -1) & (place <= size)
    place = place.clamp(0, size - 1)
    cell = place.long().clamp(0, size - 2)
    share = place - cell
    weights = torch.stack([1 - share, share], dim=-1) * inside[..., None] / SAMPLES
    return torch.stack([cell, cell + 1], dim=-1).view(-1, side, TAPS), weights.view(-1, side, TAPS)
