"""Numbers that tell how dense attention is: entropy, distance, the softmax's Jacobian, the weights of CB_S."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..layers.broadcast import Broadcast
from ..layers.numerics import upcast

QUANTILES = (0.1, 0.9)  # of CB_S's scaling weights, as in the paper's figure 8


def entropy(weights: Tensor) -> Tensor:
    """Return -Σ a log a over the last axis, in nats: 0 of a one-hot row, log N of a uniform one.

    Args:
        weights: shares along the last axis.
    """
    weights = upcast(weights)
    return -torch.special.xlogy(weights, weights).sum(-1)


def jacobian_norm(weights: Tensor, *, scale: float = 1.0) -> Tensor:
    """Return the nuclear norm of the softmax's Jacobian, λ (diag(a) - a aᵀ), for every row along the last axis.

    The matrix is symmetric and positive semi-definite, so the norm is its trace, λ (1 - Σ a²): 0 of a one-hot row,
    λ (1 - 1/N), the most there is, of a uniform one.

    Args:
        weights: shares along the last axis.
        scale: λ, the factor between the products of queries and keys and the softmax; 1 takes the softmax's own input.
    """
    weights = upcast(weights)
    return scale * (weights.sum(-1) - weights.square().sum(-1))


def cell_centres(grid: tuple[int, int], *, ends: bool = False) -> Tensor:
    """Return where the cells of a grid lie, rows * columns, 2, in row-major order, the picture's sides being 1.

    Args:
        grid: rows and columns.
        ends: bring the first cell of an axis to 0 and the last to 1, as the Context Broadcasting paper does; otherwise
            a cell lies at its centre, so that grids of one picture can be compared.
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


class Scaling(NamedTuple):
    """What the scaling weights of one CB_S look like.

    Args:
        name: of the module.
        mean: of the weights.
        low: the 10 % quantile of their sizes.
        high: the 90 % quantile of their sizes.
        ratio: low over high, 1 where all channels get equally much of the mean; NaN where all weights are zero.
    """

    name: str
    mean: float
    low: float
    high: float
    ratio: float


def scaling_weights(model: nn.Module) -> list[Scaling]:
    """Return mean and quantile ratio of the weights of every CB_S in a model, in order of depth."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, Broadcast) and module.scale is not None:
            weights = upcast(module.scale.detach()).cpu()
            low, high = torch.quantile(weights.abs(), torch.tensor(QUANTILES, dtype=weights.dtype)).tolist()
            found.append(Scaling(name, weights.mean().item(), low, high, low / high if high else float("nan")))
    return found


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
