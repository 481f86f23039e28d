"""Anchors: the boxes that a detector's cells start from."""

from collections.abc import Sequence

import torch
from torch import Tensor


def cell_anchors(sizes: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """Return boxes around the origin, one for each ratio of height to width and each size, to whole pixels.

    Args:
        sizes: the root of each area.
        ratios: of height to width.
    """
    tall = torch.tensor(ratios, dtype=torch.float32).sqrt()[:, None]
    side = torch.tensor(sizes, dtype=torch.float32)[None]
    half_width, half_height = (side / tall).flatten() / 2, (side * tall).flatten() / 2
    return torch.stack([-half_width, -half_height, half_width, half_height], dim=1).round()


def grid_anchors(shape: tuple[int, int], stride: tuple[float, float], cell: Tensor) -> Tensor:
    """Return a map's anchors, H * W * A, 4, cell by cell in rows.

    Args:
        shape: height and width of the map.
        stride: pixels from cell to cell, down and across.
        cell: anchors of a cell around the origin, A, 4.
    """
    down = torch.arange(shape[0], device=cell.device, dtype=cell.dtype) * stride[0]
    across = torch.arange(shape[1], device=cell.device, dtype=cell.dtype) * stride[1]
    y, x = torch.meshgrid(down, across, indexing="ij")
    corners = torch.stack([x, y, x, y], dim=-1).reshape(-1, 1, 4)
    return (corners + cell).reshape(-1, 4)


def centre_points(shape: tuple[int, int], stride: tuple[float, float], *, device: torch.device | str) -> Tensor:
    """Return the centres of a map's cells in pixels, H * W, 2."""
    down = (torch.arange(shape[0], device=device, dtype=torch.float32) + 0.5) * stride[0]
    across = (torch.arange(shape[1], device=device, dtype=torch.float32) + 0.5) * stride[1]
    y, x = torch.meshgrid(down, across, indexing="ij")
    return torch.stack([x, y], dim=-1).reshape(-1, 2)
