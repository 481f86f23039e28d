"""Bridges between a map and its slots (GLMix eq. 2-4), two GPU kernels each way, in Triton.

By products it is some twenty kernels, forward and backward, and fused attention reads and writes the map more often.
Here a program has one image: it goes through the positions once, some rows at a time, and keeps all slots. The gradient
of a softmax over positions needs its sums first; they are kept from the way forward.
"""

from __future__ import annotations  # `tl` is not there yet when the kernels are defined

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .exporting import compiles_for_gpu, is_constant, shared_memory
from .triton_language import INSTALLED, tile_side, triton_for

MOST_SLOTS, MOST_CHANNELS = 64, 256  # a program holds all slots
ROOM = {8_192: 90_112, 16_384: 133_120}  # bytes of shared memory, at most, for tiles of so many numbers (Triton 3.6)
SMALL_MAP, MANY = 1024, 128  # positions up to which few programs are no loss, and images that make many
tl: Any = None  # triton.language, from the first use of a kernel on


def serves(slots: Tensor, features: Tensor) -> bool:
    """Tell whether the kernels take slots and a map: few slots, in half precision, in training compiled for a GPU."""
    if not (INSTALLED and compiles_for_gpu(features) and torch.is_grad_enabled()):
        return False
    positions, (count, channels) = features.shape[1], slots.shape[1:]
    few = is_constant(positions) and count <= MOST_SLOTS and channels <= MOST_CHANNELS
    busy = few and (positions <= SMALL_MAP or features.shape[0] >= MANY)
    if not busy or features.dtype not in (torch.float16, torch.bfloat16):
        return False
    _, _, tall, wide = _constants(slots, features)[0][2:]
    return shared_memory(features) >= min(room for numbers, room in ROOM.items() if tall * wide <= numbers)


class Gathered(torch.autograd.Function):
    """Cosines of queries, B, M, C, and features, B, N, C, and the features' averages by their softmax over positions.

    Returns:
        Averages, B, M, C, and cosines, B, N, M, times the queries' lengths.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return averages and cosines."""
        slots, logits, sums = gather(query, features)
        ctx.save_for_backward(query, features, slots, logits, sums)
        return slots, logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, of_logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of queries and features."""
        return gather_back(grad, of_logits, *ctx.saved_tensors)


class Scattered(torch.autograd.Function):
    """Averages, B, N, C, of slots, B, M, C, by the softmax over slots of logits, B, N, M."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, slots: Tensor) -> Tensor:
        """Return the averages."""
        ctx.save_for_backward(logits, slots)
        return scatter(logits, slots)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of logits and slots."""
        return scatter_back(grad, *ctx.saved_tensors)


def run_gather(start: Callable[[Any], Any], query: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return averages and cosines as `Gathered` does, and the logarithms of what the softmax divides by, B, M.

    Args:
        start: makes the kernel one that can be started.
        query: B, M, C.
        features: B, N, C.
    """
    query, features = query.contiguous(), features.contiguous()
    slots, logits = torch.empty_like(query), features.new_empty(*features.shape[:2], query.shape[1])
    sums = query.new_empty(query.shape[:2], dtype=torch.float32)
    constants, options = _constants(query, features)
    start(kernel("gather"))[(query.shape[0],)](query, features, slots, logits, sums, *constants, **options)
    return slots, logits, sums


@torch.library.triton_op("saccade::gather_slots", mutates_args={})
def gather(query: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See `run_gather`."""
    return run_gather(torch.library.wrap_triton, query, features)


def run_gather_back(
    start: Callable[[Any], Any],
    grad: Tensor,
    of_logits: Tensor,
    query: Tensor,
    features: Tensor,
    slots: Tensor,
    logits: Tensor,
    sums: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of queries and features.

    Args:
        start: makes the kernel one that can be started.
        grad: of the averages.
        of_logits: of the cosines.
        query: what `run_gather` was given and returned, as the others.
        features: see there.
        slots: see there.
        logits: see there.
        sums: see there.
    """
    grad, of_logits, query, features = (x.contiguous() for x in (grad, of_logits, query, features))
    of_query, of_features = torch.empty_like(query), torch.empty_like(features)
    constants, options = _constants(query, features)
    start(kernel("gather_back"))[(query.shape[0],)](
        grad, of_logits, query, features, slots, logits, sums, of_query, of_features, *constants, **options
    )
    return of_query, of_features


@torch.library.triton_op("saccade::gather_slots_back", mutates_args={})
def gather_back(
    grad: Tensor, of_logits: Tensor, query: Tensor, features: Tensor, slots: Tensor, logits: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor]:
    """See `run_gather_back`."""
    return run_gather_back(torch.library.wrap_triton, grad, of_logits, query, features, slots, logits, sums)


def run_scatter(start: Callable[[Any], Any], logits: Tensor, slots: Tensor) -> Tensor:
    """Return averages as `Scattered` does.

    Args:
        start: makes the kernel one that can be started.
        logits: B, N, M.
        slots: B, M, C.
    """
    logits, slots = logits.contiguous(), slots.contiguous()
    out = slots.new_empty(*logits.shape[:2], slots.shape[2])
    constants, options = _constants(slots, out)
    blocks = -(-logits.shape[1] // constants[3])
    start(kernel("scatter"))[(slots.shape[0], blocks)](logits, slots, out, *constants, **options)
    return out


@torch.library.triton_op("saccade::scatter_slots", mutates_args={})
def scatter(logits: Tensor, slots: Tensor) -> Tensor:
    """See `run_scatter`."""
    return run_scatter(torch.library.wrap_triton, logits, slots)


def run_scatter_back(start: Callable[[Any], Any], grad: Tensor, logits: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of logits and slots.

    Args:
        start: makes the kernel one that can be started.
        grad: of the averages.
        logits: what `run_scatter` was given.
        slots: see there.
    """
    grad, logits, slots = (x.contiguous() for x in (grad, logits, slots))
    of_logits, of_slots = torch.empty_like(logits), torch.empty_like(slots)
    constants, options = _constants(slots, grad)
    start(kernel("scatter_back"))[(slots.shape[0],)](grad, logits, slots, of_logits, of_slots, *constants, **options)
    return of_logits, of_slots


@torch.library.triton_op("saccade::scatter_slots_back", mutates_args={})
def scatter_back(grad: Tensor, logits: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """See `run_scatter_back`."""
    return run_scatter_back(torch.library.wrap_triton, grad, logits, slots)


def _constants(slots: Tensor, features: Tensor) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return what a kernel is compiled for, positions, slots, channels and the tiles' sides, and how.

    Loads are not to run ahead of the products: with more stages than one, Triton 3.6 lets them overwrite what products
    of 64 rows are still reading, and the answer is wrong by some percent now and then.
    """
    tall, wide = [tile_side(length) for length in slots.shape[1:]]
    rows = 64 if tall * wide <= 4096 else 32
    return (features.shape[1], *slots.shape[1:], rows, tall, wide), {"num_warps": 4, "num_stages": 1}


@functools.cache
def kernel(name: str) -> Any:
    """Return a kernel, "gather" or "scatter" or one of these and "_back", ready to be compiled."""
    kernels = (_gather, _gather_back, _scatter, _scatter_back)
    return _triton().jit({function.__name__: function for function in kernels}[f"_{name}"])


@functools.cache
def _triton() -> Any:
    return triton_for(globals(), _read, _write, _inverse_length, _weigh)


def _read(
    at: tl.tensor, first: int, count: tl.constexpr, across: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr
) -> tl.tensor:
    """Return a tile of a matrix count, across, from a row on, with zeros beyond its sides."""
    row, column = first + tl.arange(0, tall)[:, None], tl.arange(0, wide)[None, :]
    return tl.load(at + row * across + column, mask=(row < count) & (column < across), other=0.0)


def _write(
    at: tl.tensor,
    tile: tl.tensor,
    first: int,
    count: tl.constexpr,
    across: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """Write a tile into a matrix count, across, from a row on."""
    row, column = first + tl.arange(0, tall)[:, None], tl.arange(0, wide)[None, :]
    mask = (row < count) & (column < across)
    tl.store(at + row * across + column, tile.to(at.dtype.element_ty), mask=mask)


def _inverse_length(features: tl.tensor) -> tl.tensor:
    """Return one over the length of every row."""
    wide = features.to(tl.float32)
    return 1.0 / tl.maximum(tl.sqrt(tl.sum(wide * wide, 1)), 1e-12)


def _weigh(logits: tl.tensor, slots: tl.constexpr, tall: tl.constexpr) -> tl.tensor:
    """Return the softmax over slots."""
    logits = tl.where(tl.arange(0, tall)[None, :] < slots, logits.to(tl.float32), float("-inf"))
    weights = tl.exp(logits - tl.max(logits, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


def _gather(
    query: tl.tensor,
    features: tl.tensor,
    out: tl.tensor,
    logits: tl.tensor,
    sums: tl.tensor,
    positions: tl.constexpr,
    slots: tl.constexpr,
    channels: tl.constexpr,
    rows: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """Average by weights whose largest is known only in the end: what was added before is made less when one grows."""
    image = tl.program_id(0).to(tl.int64)
    features += image * (positions * channels)
    logits += image * (positions * slots)
    q = _read(query + image * (slots * channels), 0, slots, channels, tall, wide)
    largest = tl.full([tall], float("-inf"), tl.float32)
    divisor = tl.zeros([tall], tl.float32)
    found = tl.zeros([tall, wide], tl.float32)
    for first in range(0, positions, rows):
        x = _read(features, first, positions, channels, rows, wide)
        here = (tl.dot(x, tl.trans(q)) * _inverse_length(x)[:, None]).to(x.dtype)
        _write(logits, here, first, positions, slots, rows, tall)
        there = (first + tl.arange(0, rows)[:, None]) < positions
        here = tl.where(there, here.to(tl.float32), float("-inf"))
        most = tl.maximum(largest, tl.max(here, 0))
        less = tl.exp(largest - most)
        weights = tl.exp(here - most[None, :])
        divisor = divisor * less + tl.sum(weights, 0)
        found = found * less[:, None] + tl.dot(tl.trans(weights.to(x.dtype)), x)
        largest = most
    _write(out + image * (slots * channels), found / divisor[:, None], 0, slots, channels, tall, wide)
    slot = tl.arange(0, tall)
    tl.store(sums + image * slots + slot, largest + tl.log(divisor), mask=slot < slots)


def _gather_back(
    grad: tl.tensor,
    of_logits: tl.tensor,
    query: tl.tensor,
    features: tl.tensor,
    out: tl.tensor,
    logits: tl.tensor,
    sums: tl.tensor,
    of_query: tl.tensor,
    of_features: tl.tensor,
    positions: tl.constexpr,
    slots: tl.constexpr,
    channels: tl.constexpr,
    rows: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """Go through the positions once: a product of an average and its gradient is what the softmax takes off."""
    image = tl.program_id(0).to(tl.int64)
    map = image * (positions * channels)
    set = image * (slots * channels)
    logits += image * (positions * slots)
    of_logits += image * (positions * slots)
    q = _read(query + set, 0, slots, channels, tall, wide)
    given = _read(grad + set, 0, slots, channels, tall, wide)
    average = _read(out + set, 0, slots, channels, tall, wide)
    common = tl.sum(given.to(tl.float32) * average.to(tl.float32), 1)
    slot = tl.arange(0, tall)
    divisor = tl.load(sums + image * slots + slot, mask=slot < slots, other=0.0)
    found = tl.zeros([tall, wide], tl.float32)
    for first in range(0, positions, rows):
        x = _read(features + map, first, positions, channels, rows, wide)
        here = _read(logits, first, positions, slots, rows, tall).to(tl.float32)
        there = ((first + tl.arange(0, rows)[:, None]) < positions) & (slot[None, :] < slots)
        weights = tl.where(there, tl.exp(here - divisor[None, :]), 0.0)
        of_here = weights * (tl.dot(x, tl.trans(given)) - common[None, :])
        of_here += _read(of_logits, first, positions, slots, rows, tall).to(tl.float32)
        inverse = _inverse_length(x)
        along = tl.sum(of_here * here, 1) * inverse * inverse
        of_cosine = (of_here * inverse[:, None]).to(x.dtype)
        of_x = tl.dot(weights.to(x.dtype), given) + tl.dot(of_cosine, q) - x.to(tl.float32) * along[:, None]
        _write(of_features + map, of_x, first, positions, channels, rows, wide)
        found += tl.dot(tl.trans(of_cosine), x)
    _write(of_query + set, found, 0, slots, channels, tall, wide)


def _scatter(
    logits: tl.tensor,
    given: tl.tensor,
    out: tl.tensor,
    positions: tl.constexpr,
    slots: tl.constexpr,
    channels: tl.constexpr,
    rows: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    image, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * rows
    weights = _weigh(_read(logits + image * (positions * slots), first, positions, slots, rows, tall), slots, tall)
    held = _read(given + image * (slots * channels), 0, slots, channels, tall, wide)
    found = tl.dot(weights.to(held.dtype), held)
    _write(out + image * (positions * channels), found, first, positions, channels, rows, wide)


def _scatter_back(
    grad: tl.tensor,
    logits: tl.tensor,
    given: tl.tensor,
    of_logits: tl.tensor,
    of_slots: tl.tensor,
    positions: tl.constexpr,
    slots: tl.constexpr,
    channels: tl.constexpr,
    rows: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    image = tl.program_id(0).to(tl.int64)
    set = image * (slots * channels)
    grad += image * (positions * channels)
    logits += image * (positions * slots)
    of_logits += image * (positions * slots)
    held = _read(given + set, 0, slots, channels, tall, wide)
    found = tl.zeros([tall, wide], tl.float32)
    for first in range(0, positions, rows):
        g = _read(grad, first, positions, channels, rows, wide)
        weights = _weigh(_read(logits, first, positions, slots, rows, tall), slots, tall)
        of_weights = tl.dot(g, tl.trans(held))
        of_here = weights * (of_weights - tl.sum(weights * of_weights, 1)[:, None])
        _write(of_logits, of_here, first, positions, slots, rows, tall)
        found += tl.dot(tl.trans(weights.to(g.dtype)), g)
    _write(of_slots + set, found, 0, slots, channels, tall, wide)
