"""Anchor boxes."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

FINEST = 32.0  # pixels: smallest anchor of heads that match by overlap
NEAR = 1.5  # an anchor larger by this factor still overlaps an object by nearly a half
MOST_HALVINGS = 3


class Anchors(nn.Module):
    """The anchors of a feature pyramid, cached by image size.

    Args:
        sizes: square roots of the areas, in cells.
        ratios: ratios of height to width.
    """

    def __init__(self, sizes: Sequence[float], ratios: Sequence[float]) -> None:
        super().__init__()
        self.sizes, self.ratios = tuple(sizes), tuple(ratios)
        self.kept: dict[tuple[object, ...], list[Tensor]] = {}

    def halve(self, times: int) -> None:
        """Halve the size of all anchors `times` times, for small objects."""
        self.sizes = tuple(size / 2**times for size in self.sizes)

    def forward(
        self, shapes: Sequence[tuple[int, int]], size: tuple[int, int], device: torch.device | str
    ) -> list[Tensor]:
        """Return each level's anchors, A, 4, for the given map and image sizes."""
        if torch.compiler.is_compiling() or torch.compiler.is_exporting():
            return self._make(shapes, size, device)
        key = (tuple(shapes), tuple(size), str(device))
        if key not in self.kept:
            with torch.inference_mode(False):  # they are also used in training
                self.kept[key] = self._make(shapes, size, device)
        return self.kept[key]

    def _make(
        self, shapes: Sequence[tuple[int, int]], size: tuple[int, int], device: torch.device | str
    ) -> list[Tensor]:
        found = []
        for shape in shapes:
            stride = (size[0] // shape[0], size[1] // shape[1])
            cell = cell_anchors([stride[0] * one for one in self.sizes], self.ratios)
            found.append(grid_anchors(shape, stride, cell.to(device)))
        return found


def halvings_for(side: float | None) -> int:
    """Return how often to halve anchors so that the smallest match small objects of the given side in pixels."""
    if not side:
        return 0
    return min(max(math.ceil(math.log2(FINEST / (NEAR * side))), 0), MOST_HALVINGS)


def cell_anchors(sizes: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """Return boxes around the origin, one for each ratio and size, rounded to pixels."""
    tall = torch.tensor(ratios, dtype=torch.float32).sqrt()[:, None]
    side = torch.tensor(sizes, dtype=torch.float32)[None]
    half_width, half_height = (side / tall).flatten() / 2, (side * tall).flatten() / 2
    return torch.stack([-half_width, -half_height, half_width, half_height], dim=1).round()


def grid_anchors(shape: tuple[int, int], stride: tuple[float, float], cell: Tensor) -> Tensor:
    """Return a map's anchors, H * W * A, 4, in row-major order of cells.

    Args:
        shape: height and width of the map.
        stride: vertical and horizontal stride in pixels.
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
