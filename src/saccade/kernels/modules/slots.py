"""The global branch of GLMix on a GPU: slots are pooled, clustered and dispatched by what is faster there."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...layers.cluster import Dispatch, cell_weights, inverse_length
from ...layers.numerics import unit
from ...layers.slots import SlotMixer
from ..compiling import in_half_precision
from ..fused import Fused
from ..ops import cluster
from ..ops.product import matmul

SMALL_MAP = 1024  # positions below which the logits are too few to be worth avoiding
LARGE_MAP = 4096  # positions from which on a softmax over them is to be spread over a GPU, since images are few then
SPREADING = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # cuDNN's does not


class UnpaddedSlots(Fused, SlotMixer):
    """Products that a compiler leaves whole, see `ops/product.py`."""

    plain = SlotMixer
    forward = SlotMixer.forward  # its steps differ

    def cluster(self, slots: Tensor, features: Tensor) -> tuple[Tensor, Dispatch]:
        """Return clustered slots and the dispatch."""
        if self.scale is None or not features.is_cuda:
            return super().cluster(slots, features)
        return cluster_unpadded(slots, features, self.scale)


class FusedSlotMixer(UnpaddedSlots):
    """Slots pooled by sums or products, bridges by kernels in compiled training and by quicker forms elsewhere."""

    plain = UnpaddedSlots

    def initial_slots(self, source: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return the slots before clustering, B, M, C: the gradient of adaptive pooling adds up atomically on a GPU."""
        known = all(isinstance(length, int) for length in grid)
        if self.init_slots is not None or not source.is_cuda or not known:
            return super().initial_slots(source, grid)
        whole = all(length % self.side == 0 for length in grid)
        return (average_cells if whole else average_by_product)(source, grid, self.side)

    def gathers(self, slots: Tensor, features: Tensor) -> bool:
        """Whether the kernels take slots and a map; the dispatch then takes a bias cut off inside the slots too."""
        return self.scale is not None and cluster.serves(slots, features)

    def cluster(self, slots: Tensor, features: Tensor) -> tuple[Tensor, Dispatch]:
        """Return clustered slots and the dispatch."""
        if self.scale is None or not (features.is_cuda or self.gathers(slots, features)):
            return super().cluster(slots, features)
        if self.gathers(slots, features):
            query = unit(slots).to(features.dtype)
            clustered, logits = cluster.Gathered.apply(query, features, self.scale)
            return clustered, lambda slots, before=None: cluster.Scattered.apply(logits, slots, before)
        form = cluster_by_attention if fusable(features) else cluster_by_positions
        return form(slots, features, self.scale)


def cluster_unpadded(slots: Tensor, features: Tensor, scale: Tensor) -> tuple[Tensor, Dispatch]:
    """Cluster as `soft_cluster` does, by products that a compiler leaves whole."""
    query = (scale * unit(slots)).to(features.dtype)
    logits = (matmul(query, features.mT) * inverse_length(features).mT).to(features.dtype)
    return matmul(logits.softmax(dim=2), features), lambda slots: matmul(logits.softmax(dim=1).mT, slots)


def cluster_by_positions(slots: Tensor, features: Tensor, scale: Tensor) -> tuple[Tensor, Dispatch]:
    """Cluster by rows of logits that are as long as there are slots, which lies aligned on any map."""
    query = (scale * unit(slots)).to(features.dtype)
    logits = (matmul(features, query.mT) * inverse_length(features)).to(features.dtype)
    return matmul(_over_positions(logits), features), lambda slots: matmul(logits.softmax(dim=2), slots)


def _over_positions(logits: Tensor) -> Tensor:
    """Return the softmax of logits B, N, M over positions, B, M, N.

    PyTorch's own along columns has a processor of the GPU for each image; along rows one for each slot.
    """
    positions = logits.shape[1]
    if torch.compiler.is_compiling() or positions < LARGE_MAP or positions % 8:  # rows are to lie aligned
        return logits.softmax(dim=1).mT
    return logits.mT.softmax(dim=2)


def cluster_by_attention(slots: Tensor, features: Tensor, scale: Tensor) -> tuple[Tensor, Dispatch]:
    """Cluster by fused attention, which never forms the logits."""
    query = (scale * unit(slots)).to(features.dtype)
    key = (features * inverse_length(features)).to(features.dtype)
    return _gather(query, key, features), lambda slots: _attend(key, query, slots)


def _gather(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend from slots to the positions of a map."""
    if key.shape[1] < LARGE_MAP or torch.is_grad_enabled():  # gradients of those that spread differ from call to call
        return _attend(query, key, value)
    with sdpa_kernel(SPREADING):
        return _attend(query, key, value)


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend with one head as wide as the channels."""
    query, key, value = query[:, None], key[:, None], value[:, None]
    return F.scaled_dot_product_attention(query, key, value, scale=1.0)[:, 0]


def fusable(features: Tensor) -> bool:
    """Whether fused attention, which never forms the B, M, N logits, beats the direct form.

    It pays on CUDA in half precision, for heads that its kernels are made for and maps of some size. In float32, for
    wider heads and on the CPU it takes longer, and the wider the map the more it keeps for backward: its output,
    B, N, C, in place of weights, B, M, N.
    """
    fits = features.is_cuda and features.shape[-1] <= 128 and features.shape[-2] >= SMALL_MAP
    return fits and in_half_precision(features)


def average_cells(x: Tensor, grid: tuple[int, int], side: int) -> Tensor:
    """Average a map B, H * W, C over side x side cells that divide it, to B, side * side, C."""
    return x.unflatten(1, (side, grid[0] // side, side, grid[1] // side)).mean((2, 4)).flatten(1, 2)


def average_by_product(x: Tensor, grid: tuple[int, int], side: int) -> Tensor:
    """Average a map B, H * W, C over side x side cells that may overlap, to B, side * side, C.

    The weights of a cell are all equal: rounded to half precision they change a slot's length, which nothing reads,
    and not its direction.
    """
    rows, columns = (cell_weights(length, side, x) for length in grid)
    weights = (rows.mT[:, None, :, None] * columns.mT[None, :, None, :]).reshape(1, -1, side * side).contiguous()
    return matmul(weights.mT.expand(len(x), -1, -1), x)  # their rows are positions, so that they lie aligned on any map
