"""Bridges between a map and a set of slots: cluster positions into slots, dispatch slots back to positions.

Each bridge returns the clustered slots and the function that dispatches (transformed) slots through the same
correspondence, so that what is between the two, an attention over the slots, is the caller's.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import cluster_triton
from .numerics import in_half_precision, unit
from .parts import due_by_image, ports_for
from .product import matmul
from .switch import on

Dispatch = Callable[..., Tensor]  # of slots; where `cluster_triton` serves, of a bias inside them too that it cuts off
SMALL_MAP = 1024  # positions below which the logits are too few to be worth avoiding
LARGE_MAP = 4096  # positions from which on a softmax over them is to be spread over a GPU, since images are few then
SPREADING = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # cuDNN's does not


def soft_cluster(slots: Tensor, features: Tensor, scale: Tensor) -> tuple[Tensor, Dispatch]:
    """Cluster by scaled cosine similarity, softly (GLMix eq. 2-4).

    Args:
        slots: initial slots, B, M, C.
        features: the map's positions, B, N, C.
        scale: factor of the cosine.

    Returns:
        Clustered slots, B, M, C, and the dispatch from B, M, C to B, N, C.
    """
    if cluster_triton.serves(slots, features):
        port = ports_for(due_by_image(slots, scale))
        clustered, logits = cluster_triton.Gathered.apply(unit(slots).to(features.dtype), features, scale, *port)
        return clustered, lambda slots, before=None: _scatter(logits, slots, before)
    bridge = _soft_fused if fusable(features) else _soft_direct
    return bridge(slots, features, scale)


def _scatter(logits: Tensor, slots: Tensor, before: Tensor | None) -> Tensor:
    return cluster_triton.Scattered.apply(logits, slots, before, *ports_for(due_by_image(slots, before)))


def correspondence(slots: Tensor, features: Tensor, scale: Tensor) -> Tensor:
    """Return the scaled cosine similarity of slots and positions, B, M, N, in at least float32 (GLMix eq. 2)."""
    query = (scale * unit(slots)).to(features.dtype)
    # The positions are scaled after the product, so that no unit-length copy of the map is made or kept for backward.
    return matmul(query, features.mT) * _inverse_length(features).mT


def _soft_direct(slots: Tensor, features: Tensor, scale: Tensor) -> tuple[Tensor, Dispatch]:
    if on("cluster_forms") and features.is_cuda:
        return _soft_by_positions(slots, features, scale)
    logits = correspondence(slots, features, scale).to(features.dtype)
    return matmul(logits.softmax(dim=2), features), lambda slots: matmul(logits.softmax(dim=1).mT, slots)


def _soft_by_positions(slots: Tensor, features: Tensor, scale: Tensor) -> tuple[Tensor, Dispatch]:
    """Rows of logits are as long as there are slots, which lies aligned on any map."""
    query = (scale * unit(slots)).to(features.dtype)
    logits = (matmul(features, query.mT) * _inverse_length(features)).to(features.dtype)
    return matmul(_over_positions(logits), features), lambda slots: matmul(logits.softmax(dim=2), slots)


def _over_positions(logits: Tensor) -> Tensor:
    """Return the softmax of logits B, N, M over positions, B, M, N.

    PyTorch's own along columns has a processor of the GPU for each image; along rows one for each slot.
    """
    positions = logits.shape[1]
    if torch.compiler.is_compiling() or positions < LARGE_MAP or positions % 8:  # rows are to lie aligned
        return logits.softmax(dim=1).mT
    return logits.mT.softmax(dim=2)


def _soft_fused(slots: Tensor, features: Tensor, scale: Tensor) -> tuple[Tensor, Dispatch]:
    query = (scale * unit(slots)).to(features.dtype)
    key = (features * _inverse_length(features)).to(features.dtype)
    return _gather(query, key, features), lambda slots: _attend(key, query, slots)


def _gather(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend from slots to the positions of a map."""
    if key.shape[1] < LARGE_MAP or torch.is_grad_enabled():  # gradients of those that spread differ from call to call
        return _attend(query, key, value)
    with sdpa_kernel(SPREADING):
        return _attend(query, key, value)


def _inverse_length(features: Tensor) -> Tensor:
    """Return B, N, 1 in at least float32, without a float32 copy of features in half precision."""
    dtype = torch.float32 if features.dtype in (torch.float16, torch.bfloat16) else None
    return torch.linalg.vector_norm(features, dim=-1, keepdim=True, dtype=dtype).clamp_min(1e-12).reciprocal()


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend with one head as wide as the channels."""
    query, key, value = query[:, None], key[:, None], value[:, None]
    return F.scaled_dot_product_attention(query, key, value, scale=1.0)[:, 0]


def fusable(features: Tensor) -> bool:
    """Tell whether fused attention, which never forms the B, M, N logits, beats the direct form.

    It pays on CUDA in half precision, for heads that its kernels are made for and maps of some size. In float32, for
    wider heads and on the CPU it takes longer, and the wider the map the more it keeps for backward: its output,
    B, N, C, in place of weights, B, M, N.
    """
    if not on("cluster_forms") or not features.is_cuda or features.shape[-1] > 128 or features.shape[-2] < SMALL_MAP:
        return False
    return in_half_precision(features)


def kmeans_cluster(slots: Tensor, features: Tensor, iterations: int) -> tuple[Tensor, Dispatch]:
    """Cluster by k-means on directions: a slot is its members' mean, a position receives its own cluster's slot.

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
    return weights.to(features.dtype) @ features, lambda slots: slots.gather(1, index)


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


def pool_slots(x: Tensor, grid: tuple[int, int], side: int) -> Tensor:
    """Average a map over a grid of side x side cells (GLMix eq. 1).

    Args:
        x: map, B, H * W, C; cells overlap where a side does not divide, and repeat where it is smaller than `side`.
        grid: H, W.
        side: cells per axis.

    Returns:
        Initial slots in row-major order, B, side * side, C.
    """
    height, width = grid
    known = isinstance(height, int) and isinstance(width, int)
    if on("pool") and x.is_cuda and known:  # the gradient of adaptive pooling adds up atomically there
        return average_cells(x, grid, side) if height % side == width % side == 0 else average_by_product(x, grid, side)
    x = x.unflatten(1, grid).permute(0, 3, 1, 2)
    if known:
        return F.adaptive_avg_pool2d(x, side).flatten(2).mT
    x = _cells(height, side, x) @ x @ _cells(width, side, x).mT  # one graph for all sizes, of operators exporters know
    return x.flatten(2).mT


def average_cells(x: Tensor, grid: tuple[int, int], side: int) -> Tensor:
    """Average a map B, H * W, C over side x side cells that divide it, to B, side * side, C."""
    return x.unflatten(1, (side, grid[0] // side, side, grid[1] // side)).mean((2, 4)).flatten(1, 2)


def average_by_product(x: Tensor, grid: tuple[int, int], side: int) -> Tensor:
    """Average a map B, H * W, C over side x side cells that may overlap, to B, side * side, C.

    The weights of a cell are all equal: rounded to half precision they change a slot's length, which nothing reads,
    and not its direction.
    """
    rows, columns = (_cells(length, side, x) for length in grid)
    weights = (rows.mT[:, None, :, None] * columns.mT[None, :, None, :]).reshape(1, -1, side * side).contiguous()
    return matmul(weights.mT.expand(len(x), -1, -1), x)  # their rows are positions, so that they lie aligned on any map


def _cells(length: int, count: int, like: Tensor) -> Tensor:
    """Return the matrix count, length that averages an axis the way adaptive pooling does."""
    cell = torch.arange(count, device=like.device)[:, None]
    place = torch.arange(length, device=like.device)
    first = cell * length // count
    last = ((cell + 1) * length + count - 1) // count
    return ((place >= first) & (place < last)).to(like.dtype) / (last - first)
