"""Measurements of attention maps, in chunks of rows: entropy, distance, Jacobian of the softmax."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..layers.numerics import upcast
from .grids import Axes, TokenGrid

CHUNK = 1 << 24  # attention weights in memory at a time
MAX_CACHED_ELEMENTS = 1 << 26  # largest map that is kept


@dataclass(frozen=True)
class AttentionMap:
    """Measurements of a module's attention; B images, W windows each, H heads, N queries, M keys."""

    name: str  # path of the module
    label: str  # its name, with the number of the call if there are several
    depth: int  # number of maps computed before it
    grid: TokenGrid  # positions of its tokens
    fused: bool  # whether it was recomputed for a fused kernel, instead of taken from the model
    scale: float | None  # scale of the logits, if known
    entropy: Tensor  # in nats, B, W, H, N
    jacobian: Tensor  # nuclear norm of the softmax's Jacobian, B, W, H, N
    # mean distance of each query on the grid to its keys, in sides of image or window, B, W, H, n
    attended: Tensor | None
    relative: Tensor | None  # the distance as defined in the Context Broadcasting paper, B, W, H
    received: Tensor  # mean weight of each key over all queries, B, W, H, M
    first: Tensor | None  # weights of the first query, B, W, H, M; None if it is a patch token
    weights: Tensor | None  # attention maps of one image, W, H, N, M, if kept

    @property
    def windows(self) -> int:
        """Number of windows of an image."""
        return self.entropy.shape[1]

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.entropy.shape[2]

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.entropy.shape[3]

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.received.shape[3]

    @property
    def bound(self) -> float:
        """The largest possible entropy, of uniform attention."""
        return math.log(self.keys)


def measure(rows: Callable[[int, int], Tensor], axes: Axes, *, grid: TokenGrid, keep: int | None) -> dict[str, Any]:
    """Measure an attention map in chunks of queries; return fields of `AttentionMap`.

    Args:
        rows: returns the weights ..., n, M of a range of queries.
        keep: index of the image whose maps are kept, if any.
    """
    first = axes.apply(rows(0, 1))  # B, W, H, 1, M
    lead, keys = math.prod(first.shape[:3]), first.shape[-1]
    step = max(CHUNK // (lead * keys), 1)
    apart = _distances(grid, keys, first.device)
    parts: list[dict[str, Tensor]] = []
    begin, whole = 0, []
    while True:
        weights = axes.apply(rows(begin, begin + step))
        if not weights.shape[-2]:
            break
        parts.append(_numbers(weights, begin, grid, apart))
        if keep is not None:
            whole.append(weights[keep].cpu())
        begin += weights.shape[-2]
        if weights.shape[-2] < step:
            break
    joined: dict[str, Any] = {
        key: torch.cat([part[key] for part in parts], -1).cpu() for key in ("entropy", "jacobian")
    }
    joined["received"] = (sum(part["received"] for part in parts) / begin).cpu()  # type: ignore[union-attr]
    joined["first"] = first[..., 0, :].cpu() if grid.prefix[0] else None
    joined["attended"] = joined["relative"] = None
    if apart is not None:
        joined["attended"] = torch.cat([part["attended"] for part in parts], -1).cpu()
        if grid.query_grid == grid.key_grid and keys - grid.prefix[1] > 1:
            joined["relative"] = sum(part["relative"] for part in parts).cpu()  # type: ignore[union-attr]
    kept = keep is not None and sum(part.numel() for part in whole) <= MAX_CACHED_ELEMENTS
    joined["weights"] = torch.cat(whole, -2) if kept else None
    return joined


def _distances(grid: TokenGrid, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return the distances of queries and keys on the grid: between cell centres, and as in the paper."""
    if grid.query_grid is None or grid.key_grid is None or keys == grid.prefix[1]:
        return None
    found = []
    for ends in (False, True):
        one, other = (cell_centres(cells, ends=ends).to(device) for cells in (grid.query_grid, grid.key_grid))
        found.append(city_block(one, other))
    return found[0], found[1]


def _numbers(weights: Tensor, begin: int, grid: TokenGrid, apart: tuple[Tensor, Tensor] | None) -> dict[str, Tensor]:
    numbers = {
        "entropy": entropy(weights),
        "jacobian": jacobian_norm(weights),
        "received": weights.nan_to_num().sum(-2),
    }
    if apart is not None:
        skip = max(grid.prefix[0] - begin, 0)
        spatial = weights[..., skip:, grid.prefix[1] :]
        start = begin + skip - grid.prefix[0]
        centres, ends = (x[start : start + spatial.shape[-2]] for x in apart)
        numbers["attended"] = attended_distance(spatial, centres)
        numbers["relative"] = relative_distance(spatial, ends)
    return numbers


def entropy(weights: Tensor) -> Tensor:
    """Return -Σ a log a over the last axis, in nats: 0 of a one-hot row, log N of a uniform one."""
    weights = upcast(weights)
    return -torch.special.xlogy(weights, weights).sum(-1)


def jacobian_norm(weights: Tensor, *, scale: float = 1.0) -> Tensor:
    """Return the nuclear norm of the softmax's Jacobian, λ (diag(a) - a aᵀ), for every row along the last axis.

    The matrix is symmetric and positive semi-definite, so the norm is its trace, λ (1 - Σ a²): 0 of a one-hot row,
    λ (1 - 1/N), the most there is, of a uniform one.

    Args:
        scale: λ, the factor between the products of queries and keys and the softmax; 1 takes the softmax's own input.
    """
    weights = upcast(weights)
    return scale * (weights.sum(-1) - weights.square().sum(-1))


def cell_centres(grid: tuple[int, int], *, ends: bool = False) -> Tensor:
    """Return the positions of grid cells, rows * columns, 2, in row-major order, in sides of the image.

    Args:
        grid: rows and columns.
        ends: place the first cell of an axis at 0 and the last at 1, as in the Context Broadcasting paper; otherwise
            cells are at their centres, so that grids of one image can be compared.
    """
    axes = [torch.linspace(0, 1, n) if ends and n > 1 else (torch.arange(n) + 0.5) / n for n in grid]
    return torch.cartesian_prod(*axes).reshape(-1, 2)


def city_block(one: Tensor, other: Tensor) -> Tensor:
    """Return the city block distances of all pairs of positions, N, M."""
    return (one[:, None] - other[None]).abs().sum(-1)


def attended_distance(weights: Tensor, distances: Tensor) -> Tensor:
    """Return the mean distance of each query to its keys, by their weights.

    Args:
        weights: ..., N, M of queries and keys with a position; rows need not sum to 1.
        distances: N, M.

    Returns:
        ..., N; NaN for queries with no weight on these keys.
    """
    weights = upcast(weights)
    return (weights * distances).sum(-1) / weights.sum(-1)


def relative_distance(weights: Tensor, distances: Tensor) -> Tensor:
    """Return the paper's distance of spatial interactions, the mean of a_ij |p_i - p_j| over all pairs i ≠ j.

    Args:
        weights: ..., n, N of spatial tokens, for all N queries or n of them; results of chunks add up.
        distances: n, N, zero between a token and itself.

    Returns:
        ..., a number for each map; NaN for a single token.
    """
    count = weights.shape[-1]
    total = (upcast(weights).nan_to_num() * distances).sum((-2, -1))
    return total / (count * (count - 1)) if count > 1 else torch.full_like(total, torch.nan)


def spread(values: Tensor, shares: Sequence[float] = (0.15, 0.85)) -> tuple[float, list[float]]:
    """Return mean and quantiles of the finite values of a tensor; NaN if there are none."""
    finite = values[values.isfinite()].double()
    if not finite.numel():
        return float("nan"), [float("nan")] * len(shares)
    # torch.quantile is limited to 16 million values.
    ordered = finite.sort().values
    places = torch.tensor(shares, dtype=torch.float64) * (len(ordered) - 1)
    lower = places.floor().long()
    upper = (lower + 1).clamp(max=len(ordered) - 1)
    quantiles = torch.lerp(ordered[lower], ordered[upper], places - lower)
    return finite.mean().item(), quantiles.tolist()
