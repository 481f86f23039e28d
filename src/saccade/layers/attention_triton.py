"""Attention among few tokens, one GPU kernel each way, in Triton.

Written out it is a dozen small kernels, products of a few rows and copies between them, each of which takes as long to
start as to run; tiles of the libraries' fused kernels are made for many tokens. Here a program has one head of one
image, all its tokens at once, and reads and writes what the linear layers beside it make and take.
"""

from __future__ import annotations  # `tl` is not there yet when the kernels are defined

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .exporting import compiles_for_gpu, is_constant, shared_memory
from .parts import add_all_up
from .switch import on
from .triton_language import INSTALLED, tile_side, triton_for

MOST_TOKENS, MOST_CHANNELS = 128, 64  # of a head: what the registers hold
ROOM = 98_312  # bytes of shared memory that the largest tile takes, at most (sm_80 to sm_120, Triton 3.6)
tl: Any = None  # triton.language, from the first use of a kernel on


def serves(x: Tensor, width: int, tokens: int | None = None) -> bool:
    """Tell whether the kernel takes tokens B, N, C: few, in half precision, in code compiled for a GPU.

    Args:
        x: the tokens, as a product reads them.
        width: channels of a head.
        tokens: how many, if others than `x` are meant.
    """
    if not (INSTALLED and on("attention") and compiles_for_gpu(x) and shared_memory(x) >= ROOM):
        return False
    tokens = x.shape[1] if tokens is None else tokens
    few = is_constant(tokens) and tokens <= MOST_TOKENS and width <= MOST_CHANNELS
    return few and x.dtype in (torch.float16, torch.bfloat16)


class Attended(torch.autograd.Function):
    """Self-attention of queries, keys and values, B, N, 3 * heads * d, to B, N, heads * d.

    Args:
        qkv: queries, keys and values.
        before: a bias that they have in them already, without a gradient from there; it gets its own here.
        heads: how many.
        port: of the bias, which gets its gradient in a part for every image, where there is one.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, before: Tensor | None, heads: int, *port: Tensor) -> Tensor:
        """Return what every token gathered."""
        ctx.save_for_backward(qkv)
        ctx.heads, ctx.dtype, ctx.ported = heads, None if before is None else before.dtype, len(port) > 0
        return attend(qkv, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of queries, keys and values, from the weights computed once more, and of the bias."""
        of_before = ctx.needs_input_grad[1]
        of_qkv, parts = attend_back(grad, *ctx.saved_tensors, ctx.heads, of_before)
        if ctx.ported:
            return of_qkv, None, None, parts
        return of_qkv, add_all_up([parts])[0].to(ctx.dtype) if of_before else None, None


def run_attend(start: Callable[[Any], Any], qkv: Tensor, heads: int) -> Tensor:
    """Return what every token gathered, B, N, heads * d.

    Args:
        start: makes the kernel one that can be started.
        qkv: queries, keys and values, B, N, 3 * heads * d.
        heads: how many.
    """
    qkv = qkv.contiguous()
    out = qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)
    constants, options = _constants(qkv, heads)
    start(kernel("attend"))[(qkv.shape[0] * heads,)](qkv, out, *constants, **options)
    return out


@torch.library.triton_op("saccade::attend", mutates_args={})
def attend(qkv: Tensor, heads: int) -> Tensor:
    """See `run_attend`."""
    return run_attend(torch.library.wrap_triton, qkv, heads)


def run_attend_back(
    start: Callable[[Any], Any], grad: Tensor, qkv: Tensor, heads: int, sums: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradient of queries, keys and values, B, N, 3 * heads * d, and if asked its sums, B, 3 * heads * d.

    Args:
        start: makes the kernel one that can be started.
        grad: of what every token gathered, B, N, heads * d.
        qkv: queries, keys and values, B, N, 3 * heads * d.
        heads: how many.
        sums: return them, else nothing.
    """
    grad, qkv = grad.contiguous(), qkv.contiguous()
    out, parts = torch.empty_like(qkv), qkv.new_empty(len(qkv) if sums else 0, qkv.shape[2], dtype=torch.float32)
    constants, options = _constants(qkv, heads)
    start(kernel("attend_back"))[(qkv.shape[0] * heads,)](
        grad, qkv, out, parts if sums else qkv, *constants, sums, **options
    )
    return out, parts


@torch.library.triton_op("saccade::attend_back", mutates_args={})
def attend_back(grad: Tensor, qkv: Tensor, heads: int, sums: bool) -> tuple[Tensor, Tensor]:
    """See `run_attend_back`."""
    return run_attend_back(torch.library.wrap_triton, grad, qkv, heads, sums)


def _constants(qkv: Tensor, heads: int) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return what a kernel is compiled for, tokens, heads, channels and the tile's sides, and how."""
    tokens, width = qkv.shape[1], qkv.shape[2] // (3 * heads)
    tall = tile_side(tokens)
    return (tokens, heads, width, tall, tile_side(width)), {"num_warps": min(tall // 16, 4)}


@functools.cache
def kernel(name: str) -> Any:
    """Return a kernel, "attend" or "attend_back", ready to be compiled."""
    return _triton().jit({"attend": _attend, "attend_back": _attend_back}[name])


@functools.cache
def _triton() -> Any:
    return triton_for(globals(), _tile, _weigh)


def _tile(
    step: tl.constexpr, tokens: tl.constexpr, width: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr
) -> tl.tuple:
    """Return where a head's tokens lie, rows `step` apart, and which of the tile are there."""
    row, column = tl.arange(0, tall)[:, None], tl.arange(0, wide)[None, :]
    return row * step + column, (row < tokens) & (column < width)


def _weigh(
    query: tl.tensor, key: tl.tensor, tokens: tl.constexpr, width: tl.constexpr, tall: tl.constexpr
) -> tl.tensor:
    """Return the weight of every key for every query."""
    logits = tl.dot(query, tl.trans(key)) * (1.4426950408889634 * width**-0.5)
    logits = tl.where(tl.arange(0, tall)[None, :] < tokens, logits, float("-inf"))
    weights = tl.exp2(logits - tl.max(logits, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


def _attend(
    qkv: tl.tensor,
    out: tl.tensor,
    tokens: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    image, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    all: tl.constexpr = heads * width
    at, there = _tile(3 * all, tokens, width, tall, wide)
    qkv += image * (3 * tokens * all) + head * width
    query = tl.load(qkv + at, mask=there, other=0.0)
    key = tl.load(qkv + at + all, mask=there, other=0.0)
    value = tl.load(qkv + at + 2 * all, mask=there, other=0.0)
    weights = _weigh(query, key, tokens, width, tall)
    at, there = _tile(all, tokens, width, tall, wide)
    found = tl.dot(weights.to(value.dtype), value).to(value.dtype)
    tl.store(out + image * (tokens * all) + head * width + at, found, mask=there)


def _attend_back(
    grad: tl.tensor,
    qkv: tl.tensor,
    out: tl.tensor,
    parts: tl.tensor,
    tokens: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    sums: tl.constexpr,
) -> None:
    image, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0) % heads
    all: tl.constexpr = heads * width
    at, there = _tile(all, tokens, width, tall, wide)
    given = tl.load(grad + image * (tokens * all) + head * width + at, mask=there, other=0.0)
    at, there = _tile(3 * all, tokens, width, tall, wide)
    first = image * (3 * tokens * all) + head * width
    query = tl.load(qkv + first + at, mask=there, other=0.0)
    key = tl.load(qkv + first + at + all, mask=there, other=0.0)
    value = tl.load(qkv + first + at + 2 * all, mask=there, other=0.0)
    weights = _weigh(query, key, tokens, width, tall)
    of_value = tl.dot(tl.trans(weights.to(given.dtype)), given)
    of_weights = tl.dot(given, tl.trans(value))
    of_logits = weights * (of_weights - tl.sum(weights * of_weights, 1)[:, None]) * width**-0.5
    of_logits = of_logits.to(given.dtype)
    of_query = tl.dot(of_logits, key)
    of_key = tl.dot(tl.trans(of_logits), query)
    tl.store(out + first + at, of_query.to(given.dtype), mask=there)
    tl.store(out + first + at + all, of_key.to(given.dtype), mask=there)
    tl.store(out + first + at + 2 * all, of_value.to(given.dtype), mask=there)
    if sums:  # what is not there is zero
        column = tl.arange(0, wide)
        parts += image * (3 * all) + head * width + column
        tl.store(parts, tl.sum(of_query, 0), mask=column < width)
        tl.store(parts + all, tl.sum(of_key, 0), mask=column < width)
        tl.store(parts + 2 * all, tl.sum(of_value, 0), mask=column < width)
