"""Bridges between a map and a set of slots: cluster positions into slots, dispatch slots back to positions.

Each bridge returns the clustered slots S and the function that dispatches (transformed) slots S' through the same
correspondence, so that what is between the two, an attention over the slots, is the caller's.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .numerics import unit

Dispatch = Callable[[Tensor], Tensor]  # from slots, B, M, C, to positions, B, N, C


def pool_slots(x: Tensor, grid: tuple[int, int], side: int) -> Tensor:
    """Average a map over a grid of side x side cells (S_init, GLMix eq. 1).

    Args:
        x: map, B, H * W, C; cells overlap where `side` does not divide H or W, and repeat where H or W is below it.
        grid: H, W.
        side: cells per axis.

    Returns:
        Initial slots in row-major order, B, side * side, C.
    """
    x = x.unflatten(1, grid).permute(0, 3, 1, 2)
    if all(isinstance(length, int) for length in grid):
        return F.adaptive_avg_pool2d(x, side).flatten(2).mT
    # One graph for all sizes, of operators that exporters know.
    rows, columns = (cell_weights(length, side, x) for length in grid)
    return (rows @ x @ columns.mT).flatten(2).mT


def cell_weights(length: int, count: int, like: Tensor) -> Tensor:
    """Return the matrix count, length that averages an axis the way adaptive pooling does."""
    cell = torch.arange(count, device=like.device)[:, None]
    place = torch.arange(length, device=like.device)
    first = cell * length // count
    last = ((cell + 1) * length + count - 1) // count
    return ((place >= first) & (place < last)).to(like.dtype) / (last - first)


def soft_cluster(slots: Tensor, features: Tensor, scale: Tensor) -> tuple[Tensor, Dispatch]:
    """Cluster by scaled cosine similarity, softly (GLMix eq. 2-4).

    Args:
        slots: initial slots S_init, B, M, C.
        features: the map's positions X, B, N, C.
        scale: factor of the cosine.

    Returns:
        Clustered slots S, B, M, C, and the dispatch from S', B, M, C, to G, B, N, C.
    """
    logits = correspondence(slots, features, scale).to(features.dtype)  # A: B, M, N
    clustered = logits.softmax(dim=2) @ features  # S, eq. 3: a slot's weights over positions sum to one
    return clustered, lambda updated: logits.softmax(dim=1).mT @ updated  # G from S', eq. 4: a position's over slots do


def correspondence(slots: Tensor, features: Tensor, scale: Tensor) -> Tensor:
    """Return the scaled cosine similarity A of slots and positions, B, M, N, in at least float32 (GLMix eq. 2).

    The product runs in the precision of features. The paper divides by a learned tau; the published code multiplies by
    a learned scale.
    """
    query = (scale * unit(slots)).to(features.dtype)
    # Positions are scaled after the product, so that no unit-length copy of the map is made or kept for backward.
    return query @ features.mT * inverse_length(features).mT


def inverse_length(features: Tensor) -> Tensor:
    """Return B, N, 1 in at least float32, without a float32 copy of features in half precision."""
    dtype = torch.float32 if features.dtype in (torch.float16, torch.bfloat16) else None
    return torch.linalg.vector_norm(features, dim=-1, keepdim=True, dtype=dtype).clamp_min(1e-12).reciprocal()


def kmeans_cluster(slots: Tensor, features: Tensor, iterations: int) -> tuple[Tensor, Dispatch]:
    """Cluster by k-means on directions (GLMix table 6): a slot is its members' mean, and dispatched to its members.

    It stands for the k-means row of table 6 but differs: the paper ran Clustered Attention, whose slots start from
    hashing, and its loss became NaN; here the pooled slots are the first centres.

    Gradients flow through the means and through the dispatched slots; who belongs to which cluster is a constant, so
    the initial slots get no gradient.

    Args:
        slots: initial slots, whose directions are the first centres, B, M, C.
        features: the map's positions, B, N, C.
        iterations: updates of the centres.

    Returns:
        Clustered slots, B, M, C, and the dispatch from B, M, C to B, N, C.
    """
    weights, nearest = kmeans(slots, features, iterations)
    index = nearest[..., None].expand(-1, -1, features.shape[2])
    return weights.to(features.dtype) @ features, lambda updated: updated.gather(1, index)


@torch.no_grad()
def kmeans(slots: Tensor, features: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Return each position's weight in the mean of each cluster, B, M, N, and each position's cluster, B, N.

    A cluster that no position is nearest to keeps its centre while iterating and stands for the position nearest to it
    in the end.
    """
    key, centre = unit(features), unit(slots)
    for _ in range(iterations):
        weights = _members((centre @ key.mT).argmax(dim=1), slots.shape[1]).to(key.dtype)
        centre = torch.where(weights.any(dim=2, keepdim=True), unit(weights @ key), centre)
    similarity = centre @ key.mT  # B, M, N
    nearest = similarity.argmax(dim=1)
    members = _members(nearest, slots.shape[1])
    lone = _members(similarity.argmax(dim=2), key.shape[1]).mT
    weights = torch.where(members.any(dim=2, keepdim=True), members, lone).to(key.dtype)
    return weights / weights.sum(dim=2, keepdim=True), nearest


def _members(index: Tensor, count: int) -> Tensor:
    """Return a mask B, count, N that is true where position n has index m."""
    return index[:, None] == torch.arange(count, device=index.device)[:, None]
