"""What is measured of attention maps, a few rows at a time: entropy, distance, the softmax's Jacobian."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..layers.numerics import upcast
from .grids import Axes, TokenGrid

CHUNK = 1 << 24  # weights that are in memory at a time
KEPT = 1 << 26  # weights of a map that is kept whole


@dataclass(frozen=True)
class AttentionMap:
    """What was measured of the attention of one module; B images, W windows of each, H heads, N queries, M keys."""

    name: str  # path of the module
    label: str  # its name, with the number of the call where it ran more than once
    depth: int  # how many maps were computed before it
    grid: TokenGrid  # where its tokens lie
    fused: bool  # it was computed beside a fused kernel; else it is what the model itself computed
    scale: float | None  # factor of the products before the softmax, where it is known
    entropy: Tensor  # in nats, B, W, H, N
    jacobian: Tensor  # nuclear norm of the softmax's Jacobian, B, W, H, N
    # distance from each query on the grid to its keys, in sides of the image or the window, B, W, H, n
    attended: Tensor | None
    relative: Tensor | None  # the same as the Context Broadcasting paper defines it, B, W, H
    received: Tensor  # mean weight of each key over all queries, B, W, H, M
    first: Tensor | None  # weights of the first query, B, W, H, M; None where it is a word's
    weights: Tensor | None  # the whole maps of one image, W, H, N, M; None where they are not kept

    @property
    def windows(self) -> int:
        """How many maps there are of an image in each head."""
        return self.entropy.shape[1]

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return self.entropy.shape[2]

    @property
    def queries(self) -> int:
        """How many queries there are."""
        return self.entropy.shape[3]

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return self.received.shape[3]

    @property
    def bound(self) -> float:
        """The largest entropy there can be, that of uniform attention."""
        return math.log(self.keys)


def measure(rows: Callable[[int, int], Tensor], axes: Axes, *, grid: TokenGrid, keep: int | None) -> dict[str, Any]:
    """Return the numbers of an `AttentionMap`, measured a few queries at a time.

    Args:
        rows: returns the weights ..., n, M of queries from a first to before a last one.
        keep: the image whose maps are to be kept; None keeps none.
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
    kept = keep is not None and sum(part.numel() for part in whole) <= KEPT
    joined["weights"] = torch.cat(whole, -2) if kept else None
    return joined


def _distances(grid: TokenGrid, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return the distances of queries on the grid to keys on it: between centres, and as the paper has them."""
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
    """Return where the cells of a grid lie, rows * columns, 2, in row-major order, the image's sides being 1.

    Args:
        grid: rows and columns.
        ends: bring the first cell of an axis to 0 and the last to 1, as the Context Broadcasting paper does; otherwise
            a cell lies at its centre, so that grids of one image can be compared.
    """
    axes = [torch.linspace(0, 1, n) if ends and n > 1 else (torch.arange(n) + 0.5) / n for n in grid]
    return torch.cartesian_prod(*axes).reshape(-1, 2)


def city_block(one: Tensor, other: Tensor) -> Tensor:
    """Return the sum of the horizontal and the vertical distance of all pairs of places, N, M."""
    return (one[:, None] - other[None]).abs().sum(-1)


def attended_distance(weights: Tensor, distances: Tensor) -> Tensor:
    """Return how far each query looks: the mean of distances over its keys by their weights.

    Args:
        weights: ..., N, M of queries and keys that have a place; a row need not sum to 1.
        distances: N, M.

    Returns:
        ..., N; NaN where a query gives none of its weight to these keys.
    """
    weights = upcast(weights)
    return (weights * distances).sum(-1) / weights.sum(-1)


def relative_distance(weights: Tensor, distances: Tensor) -> Tensor:
    """Return the paper's distance of spatial interactions, the mean of a_ij |p_i - p_j| over all pairs i ≠ j.

    Args:
        weights: ..., n, N of spatial tokens: all N queries, or n of them, whose numbers then add up to that of all.
        distances: n, N, zero between a token and itself.

    Returns:
        ..., one number a map; NaN where there is but one token.
    """
    count = weights.shape[-1]
    total = (upcast(weights).nan_to_num() * distances).sum((-2, -1))
    return total / (count * (count - 1)) if count > 1 else torch.full_like(total, torch.nan)


def spread(values: Tensor, shares: Sequence[float] = (0.15, 0.85)) -> tuple[float, list[float]]:
    """Return the mean and quantiles of the finite numbers in a tensor; NaN where there are none."""
    finite = values[values.isfinite()].double()
    if not finite.numel():
        return float("nan"), [float("nan")] * len(shares)
    # Not torch.quantile, which refuses more than 16 million numbers.
    ordered = finite.sort().values
    places = torch.tensor(shares, dtype=torch.float64) * (len(ordered) - 1)
    lower = places.floor().long()
    upper = (lower + 1).clamp(max=len(ordered) - 1)
    quantiles = torch.lerp(ordered[lower], ordered[upper], places - lower)
    return finite.mean().item(), quantiles.tolist()
