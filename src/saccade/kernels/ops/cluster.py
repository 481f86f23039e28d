"""Bridges between a map and its slots (GLMix eq. 2-4), two GPU kernels each way.

By products it is some twenty kernels, forward and backward, and fused attention reads and writes the map more often.
Here a program has one image: it goes through the positions once, some rows at a time, and keeps all slots. The gradient
of a softmax over positions needs its sums first; they are kept from the way forward.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..compiling import HALVES, is_constant, shared_memory, trains_on_gpu
from ..triton.cluster import kernel
from ..triton.language import INSTALLED, launchable, tile_side
from .add_up import add_up

MOST_SLOTS, MOST_CHANNELS = 64, 256  # a program holds all slots
ROOM = {8_192: 98_304, 16_384: 135_168}  # bytes of shared memory, at most, for tiles of so many numbers (Triton 3.6)
SMALL_MAP, MANY = 1024, 128  # positions up to which few programs are no loss, and images that make many


def serves(slots: Tensor, features: Tensor) -> bool:
    """Whether the kernels take slots and a map: few slots, in half precision, in training compiled for a GPU."""
    if not (INSTALLED and trains_on_gpu(features)):
        return False
    positions, (count, channels) = features.shape[1], slots.shape[1:]
    few = is_constant(positions) and count <= MOST_SLOTS and channels <= MOST_CHANNELS
    busy = few and (positions <= SMALL_MAP or features.shape[0] >= MANY)
    if not busy or features.dtype not in HALVES:
        return False
    _, _, tall, wide = _constants(slots, features)[0][2:]
    return shared_memory(features) >= min(room for numbers, room in ROOM.items() if tall * wide <= numbers)


class Gathered(torch.autograd.Function):
    """Scaled cosines of queries and features, and the features' averages by their softmax over positions.

    Args:
        query: of length one, B, M, C.
        features: B, N, C.
        scale: factor of the cosines, a single number.

    Returns:
        Averages, B, M, C, and cosines, B, N, M.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, features: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return averages and cosines."""
        slots, logits, sums = gather(query, features, scale)
        ctx.save_for_backward(query, features, scale, slots, logits, sums)
        return slots, logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, of_logits: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of queries, features and factor."""
        of_query, of_features, parts = gather_back(grad, of_logits, *ctx.saved_tensors)
        scale = ctx.saved_tensors[2]
        asked = ctx.needs_input_grad[2]
        return of_query, of_features, add_up(parts)[0].view(scale.shape).to(scale.dtype) if asked else None


class Scattered(torch.autograd.Function):
    """Averages, B, N, C, of slots, B, M, C, by the softmax over slots of logits, B, N, M.

    Args:
        logits: of every position.
        slots: what is averaged.
        before: a bias that the slots have in them already, without a gradient from there; it gets its own here.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, slots: Tensor, before: Tensor | None) -> Tensor:
        """Return the averages."""
        ctx.save_for_backward(logits, slots)
        ctx.dtype = None if before is None else before.dtype
        return scatter(logits, slots)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of logits, slots and bias."""
        asked = ctx.needs_input_grad[2]
        of_logits, of_slots, parts = scatter_back(grad, *ctx.saved_tensors, asked)
        return of_logits, of_slots, add_up(parts)[0].to(ctx.dtype) if asked else None


@torch.library.triton_op("saccade::gather_slots", mutates_args={})
def gather(query: Tensor, features: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return averages and cosines as `Gathered` does, and the logarithms of what the softmax divides by, B, M.

    Args:
        query: B, M, C.
        features: B, N, C.
        scale: a single number.
    """
    query, features = query.contiguous(), features.contiguous()
    slots, logits = torch.empty_like(query), features.new_empty(*features.shape[:2], query.shape[1])
    sums = query.new_empty(query.shape[:2], dtype=torch.float32)
    constants, options = _constants(query, features)
    launchable(kernel("gather"))[(query.shape[0],)](query, features, scale, slots, logits, sums, *constants, **options)
    return slots, logits, sums


def gather_reference(query: Tensor, features: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See `gather`."""
    logits = scale * (features @ query.mT) / features.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    return logits.softmax(1).mT @ features, logits, logits.logsumexp(1)


@torch.library.triton_op("saccade::gather_slots_back", mutates_args={})
def gather_back(
    grad: Tensor,
    of_logits: Tensor,
    query: Tensor,
    features: Tensor,
    scale: Tensor,
    slots: Tensor,
    logits: Tensor,
    sums: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries and features, and parts of that of the factor, B, 1.

    Args:
        grad: of the averages.
        of_logits: of the cosines.
        query: what `gather` was given and returned, as the others.
        features: see there.
        scale: see there.
        slots: see there.
        logits: see there.
        sums: see there.
    """
    grad, of_logits, query, features = (x.contiguous() for x in (grad, of_logits, query, features))
    of_query, of_features = torch.empty_like(query), torch.empty_like(features)
    of_scale = query.new_empty(len(query), 1, dtype=torch.float32)
    made = slots, logits, sums, of_query, of_features, of_scale
    constants, options = _constants(query, features)
    launchable(kernel("gather_back"))[(query.shape[0],)](
        grad, of_logits, query, features, scale, *made, *constants, **options
    )
    return of_query, of_features, of_scale


def gather_back_reference(
    grad: Tensor,
    of_logits: Tensor,
    query: Tensor,
    features: Tensor,
    scale: Tensor,
    slots: Tensor,
    logits: Tensor,
    sums: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `gather_back`."""
    weights = (logits - sums[:, None]).exp()  # B, N, M
    of_logits = of_logits + weights * (features @ grad.mT - (grad * slots).sum(2)[:, None])
    inverse = features.norm(dim=-1, keepdim=True).clamp_min(1e-12).reciprocal()
    along = (of_logits * logits).sum(2, keepdim=True) * inverse.square()
    of_cosine = of_logits * inverse
    found = of_cosine.mT @ features
    of_features = weights @ grad + of_cosine @ query * scale - features * along
    return found * scale, of_features, (found * query).sum((1, 2))[:, None]


@torch.library.triton_op("saccade::scatter_slots", mutates_args={})
def scatter(logits: Tensor, slots: Tensor) -> Tensor:
    """Return averages as `Scattered` does.

    Args:
        logits: B, N, M.
        slots: B, M, C.
    """
    logits, slots = logits.contiguous(), slots.contiguous()
    out = slots.new_empty(*logits.shape[:2], slots.shape[2])
    constants, options = _constants(slots, out)
    blocks = -(-logits.shape[1] // constants[3])
    launchable(kernel("scatter"))[(slots.shape[0], blocks)](logits, slots, out, *constants, **options)
    return out


def scatter_reference(logits: Tensor, slots: Tensor) -> Tensor:
    """See `scatter`."""
    return logits.softmax(2) @ slots


@torch.library.triton_op("saccade::scatter_slots_back", mutates_args={})
def scatter_back(grad: Tensor, logits: Tensor, slots: Tensor, sums: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of logits and slots, and if asked the sums of these, B, C.

    Args:
        grad: of the averages.
        logits: what `scatter` was given.
        slots: see there.
        sums: return them, else nothing.
    """
    grad, logits, slots = (x.contiguous() for x in (grad, logits, slots))
    of_logits, of_slots = torch.empty_like(logits), torch.empty_like(slots)
    parts = slots.new_empty(len(slots) if sums else 0, slots.shape[2], dtype=torch.float32)
    constants, options = _constants(slots, grad)
    launchable(kernel("scatter_back"))[(slots.shape[0],)](
        grad, logits, slots, of_logits, of_slots, parts if sums else slots, *constants, sums, **options
    )
    return of_logits, of_slots, parts


def scatter_back_reference(grad: Tensor, logits: Tensor, slots: Tensor, sums: bool) -> tuple[Tensor, Tensor, Tensor]:
    """See `scatter_back`."""
    weights, of_weights = logits.softmax(2), grad @ slots.mT
    of_slots = weights.mT @ grad
    parts = of_slots.sum(1) if sums else of_slots.new_empty(0, of_slots.shape[2])
    return weights * (of_weights - (weights * of_weights).sum(2, keepdim=True)), of_slots, parts


def _constants(slots: Tensor, features: Tensor) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return what a kernel is compiled for, positions, slots, channels and the tiles' sides, and how.

    Loads are not to run ahead of the products: with more stages than one, Triton 3.6 lets them overwrite what products
    of 64 rows are still reading, and the answer is wrong by some percent now and then.
    """
    tall, wide = [tile_side(length) for length in slots.shape[1:]]
    rows = 64 if tall * wide <= 4096 else 32
    return (features.shape[1], *slots.shape[1:], rows, tall, wide), {"num_warps": 4, "num_stages": 1}


REFERENCES = {
    "gather": gather_reference,
    "gather_back": gather_back_reference,
    "scatter": scatter_reference,
    "scatter_back": scatter_back_reference,
}
