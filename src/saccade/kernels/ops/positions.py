"""Maps seen as matrices with a row for each position."""

from torch import Tensor


def rows(x: Tensor) -> Tensor:
    """See a map B, C, H, W that lies channels last as a matrix B * H * W, C."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def as_map(matrix: Tensor, like: Tensor) -> Tensor:
    """See a matrix of rows as a map B, C, H, W of the size of another."""
    batch, _, height, width = like.shape
    return matrix.view(batch, height, width, -1).permute(0, 3, 1, 2)
