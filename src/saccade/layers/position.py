"""Position tables: made for one grid, usable on any."""

import math

import torch
import torch.nn.functional as F
from timm.models import register_notrace_function
from torch import Tensor

from .numerics import upcast


def sinusoid_table(length: int, dim: int) -> Tensor:
    """Sine/cosine table over a flat index, computed in float64 and rounded to float32.

    Returns:
        Table of shape 1, length, dim: even columns sine, odd columns cosine.
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    column = torch.arange(dim)
    angle = position / torch.pow(10000.0, 2 * (column // 2).double() / dim)
    table = torch.where(column % 2 == 0, angle.sin(), angle.cos())
    return table.float()[None]


def resize_grid(table: Tensor, size: tuple[int, int]) -> Tensor:
    """Resample a table of shape 1, H, W, C to another grid (bicubic, anti-aliased).

    Sizes that are symbolic while a model is being exported always take the resampling path, so that one graph serves
    every size; on an unchanged grid the resampling returns its input exactly.
    """
    height, width = size
    if isinstance(height, int) and isinstance(width, int) and (height, width) == tuple(table.shape[1:3]):
        return table
    grid = upcast(table).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(height, width), mode="bicubic", antialias=True)
    return grid.permute(0, 2, 3, 1).to(table.dtype)


def resize_tokens(table: Tensor, size: tuple[int, int], *, old: tuple[int, int] | None = None) -> Tensor:
    """Resample a table of shape 1, 1 + N, C to another grid; the class token's row is kept.

    Args:
        table: the table; its N grid rows are in row-major order.
        size: the grid to resample to.
        old: the grid the table was made for; a square one is assumed if not given.
    """
    if old is None:
        side = math.isqrt(table.shape[1] - 1)
        if side * side != table.shape[1] - 1:
            raise ValueError(
                f"a position table of {table.shape[1]} rows, including the class token's, is not a square grid; give "
                "the grid it was made for"
            )
        old = (side, side)
    head, grid = table[:, :1], table[:, 1:]
    grid = resize_grid(grid.unflatten(1, old), size).flatten(1, 2)
    return torch.cat([head, grid], dim=1)


# They compare sizes, which a tracer of graphs does not know.
register_notrace_function(resize_grid)
register_notrace_function(resize_tokens)
