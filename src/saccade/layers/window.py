"""L-MHSA of NomMer: attention inside non-overlapping windows, with a learned bias for every relative position."""

import math

import torch
import torch.nn.functional as F
from timm.models import register_notrace_function, register_notrace_module
from torch import Tensor, nn

from .position import resize_grid


@register_notrace_module
class WindowAttention(nn.Module):
    """Multi-head attention inside square windows that tile the map from its top left corner.

    A map that is no whole number of windows is extended at the bottom and right; the keys added there are masked out,
    so that a window at the border attends to its real positions only.

    Args:
        dim: channels.
        num_heads: attention heads; must divide `dim`.
        window_size: side of a window.
        qkv_bias: give the query, key and value projection a bias.
    """

    def __init__(self, dim: int, *, num_heads: int, window_size: int = 7, qkv_bias: bool = True) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"num_heads={num_heads} does not divide dim={dim}; choose a divisor of it")
        if window_size < 1:
            raise ValueError(f"window_size={window_size} was given; it must be 1 or more, the side of a window")
        self.num_heads = num_heads
        self.window_size = window_size
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.relative_position_bias_table = nn.Parameter(torch.empty((2 * window_size - 1) ** 2, num_heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)

    def forward(self, x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """Mix each window of a map.

        Args:
            x: map, B, H, W, C, or B, H * W, C with its grid.
            grid: H, W.

        Returns:
            Map, B, H, W, C.
        """
        side, heads = self.window_size, self.num_heads
        H, W = x.shape[1:3] if grid is None else grid
        B = x.shape[0]
        whole = isinstance(H, int) and isinstance(W, int) and H % side == 0 and W % side == 0
        # The cut into windows follows the projection: its copy serves as queries, keys and values at once.
        x = self.qkv(extend(x, side)) if grid is None else extend(self.qkv(x).unflatten(1, grid), side)
        qkv = tile(x, side).unflatten(5, (3, heads, -1))
        rows, columns = qkv.shape[1:3]
        qkv = qkv.permute(5, 0, 1, 2, 6, 3, 4, 7).flatten(5, 6)  # 3, B, rows, columns, heads, N, d
        bias = self.relative_position_bias().to(qkv.dtype)  # heads, N, N
        if whole:
            q, k, v = qkv.flatten(1, 3)  # B * windows, heads, N, d
        else:
            q, k, v = qkv.flatten(2, 4)  # B, windows * heads, N, d
            bias = _hide_padding(bias, (H, W), side)
        x = self.attend(q, k, v, bias)
        x = x.reshape(B, rows, columns, heads, side, side, -1).permute(0, 1, 2, 4, 5, 3, 6).flatten(5)
        return self.proj(crop(untile(x), (H, W)))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """Return softmax(query key^T / sqrt(d) + bias) value, ..., heads, N, d, for a bias heads, N, N."""
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias[None])

    def set_window_size(self, window_size: int) -> None:
        """Change the side of the windows and resample the bias table for it."""
        table = self.relative_position_bias_table
        resized = resize_bias_table(table.detach(), (2 * window_size - 1) ** 2)
        self.relative_position_bias_table = nn.Parameter(resized, requires_grad=table.requires_grad)
        self.window_size = window_size

    def relative_position_bias(self) -> Tensor:
        """Return the bias of every query-key pair of a window, heads, N, N, positions in row-major order."""
        side = self.window_size
        # Entry w - 1 + i of an axis is offset i of the query from the key: each axis is a Toeplitz matrix.
        table = self.relative_position_bias_table.reshape(2 * side - 1, 2 * side - 1, self.num_heads)
        table = table.unfold(0, side, 1).unfold(1, side, 1).flip(3, 4)  # query y, query x, heads, key y, key x
        return table.permute(2, 0, 1, 3, 4).reshape(self.num_heads, side**2, side**2)


def resize_bias_table(table: Tensor, length: int) -> Tensor:
    """Resample a table of relative positions ((2w - 1)^2, heads) to another window's length, (2v - 1)^2."""
    if table.shape[0] == length:
        return table
    old, new = math.isqrt(table.shape[0]), math.isqrt(length)
    return resize_grid(table.reshape(1, old, old, -1), (new, new)).reshape(length, -1)


def extend(x: Tensor, side: int) -> Tensor:
    """Repeat the last row and column of a map (B, H, W, C) until both sides are multiples of `side`."""
    for dim in (1, 2):
        length = x.shape[dim]
        padded = (length + side - 1) // side * side
        if not isinstance(length, int):  # a symbol, while a model is exported: one graph for every size
            x = x.index_select(dim, torch.arange(padded, device=x.device).clamp(max=length - 1))
        elif padded != length:
            edge = x.narrow(dim, length - 1, 1)
            x = torch.cat([x, *[edge] * (padded - length)], dim=dim)
    return x


def tile(x: Tensor, side: int) -> Tensor:
    """View a map (B, H, W, C) as squares: B, rows, columns, side, side, C."""
    return x.unflatten(2, (-1, side)).unflatten(1, (-1, side)).transpose(2, 3)


def untile(x: Tensor) -> Tensor:
    """Join squares (B, rows, columns, side, side, C) to a map, B, H, W, C."""
    B, rows, columns, side, _, C = x.shape
    # By way of one axis: an exporter cannot prove that merging rows and side is right, but it can for all axes at once.
    return x.transpose(2, 3).contiguous().flatten().view(B, rows * side, columns * side, C)


def crop(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Undo `extend`: keep the top left H, W of a map (B, H', W', C)."""
    for dim, length in enumerate(size, start=1):
        if not isinstance(length, int):
            x = x.index_select(dim, torch.arange(length, device=x.device))
        elif x.shape[dim] != length:
            x = x.narrow(dim, 0, length)
    return x


def _hide_padding(bias: Tensor, size: tuple[int, int], side: int) -> Tensor:
    """Repeat a bias (heads, N, N) for every window of a map (windows * heads, N, N), minus infinity at padded keys."""
    heads = bias.shape[0]
    rows, columns = ((n + side - 1) // side for n in size)
    inside = torch.arange(side, device=bias.device)
    real_row = torch.arange(rows, device=bias.device)[:, None] * side + inside < size[0]  # rows, side
    real_column = torch.arange(columns, device=bias.device)[:, None] * side + inside < size[1]  # columns, side
    real = real_row[:, None, :, None] & real_column[None, :, None, :]  # rows, columns, side, side
    real = real.reshape(rows * columns, 1, 1, side**2)
    return bias.masked_fill(~real, float("-inf")).reshape(rows * columns * heads, side**2, side**2)


register_notrace_function(extend)  # it looks at sizes
