"""Branches added to a map and the layer norm of the sum, and the way back, one GPU kernel each way, in Triton.

The gradient of the sum passes here whole, and so do those of all that is added up over positions: the norm's weight and
bias, the bias that the branch ends with and the one of what is added next. A compiler reads the map anew for each.
"""

from __future__ import annotations  # `tl` is not there yet when the kernels are defined

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .exporting import compiles_for_gpu, is_constant
from .parts import Due, add_all_up
from .reuse import unheard
from .switch import on
from .triton_language import INSTALLED, tile_side, triton_for

MOST_CHANNELS = 1024  # a program holds whole positions
VALUES, WARPS = 2048, 4  # that a program has at a time, and its warps: the best that were timed on an H200
VALUES_BACK, WARPS_BACK, PROGRAMS = 1024, 2, 1056  # the same on the way back, and how many programs share it
tl: Any = None  # triton.language, from the first use of a kernel on


def serves(x: Tensor, *norms: nn.Module) -> bool:
    """Tell whether the kernels take a map B, N, C before norms: in half precision, in training compiled for a GPU."""
    return (
        INSTALLED
        and on("norm")
        and compiles_for_gpu(x)
        and torch.is_grad_enabled()
        and x.dtype in (torch.float16, torch.bfloat16)
        and all(is_constant(side) for side in x.shape)
        and x.numel() > 0
        and x.shape[-1] <= MOST_CHANNELS
        and all(type(norm) is nn.LayerNorm and norm.weight is not None and norm.bias is not None for norm in norms)
        and unheard(*norms)
    )


def due(x: Tensor, norm: nn.LayerNorm, before: Tensor | None = None, after: Tensor | None = None) -> Due:
    """Return what gets its gradients in parts where `Joined` takes a map, see there."""
    return Due(_shares(x)[1], (norm.weight, norm.bias, before, after))


class Joined(torch.autograd.Function):
    """The sum of a map and its branches, and the layer norm of that.

    Args:
        x: the map, B, N, C.
        branch: of the same shape, or none.
        second: another branch, where there is one.
        weight: of the norm.
        bias: of the norm.
        before: a bias that the branch has in it already, without a gradient from there; it gets its own here.
        after: a bias inside what is added to the sum next, cut off too.
        eps: of the norm.
        twice: return the norm once more, for another reader: what the two make of it is added up here.
        port: of what is `due`, where there is one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        branch: Tensor | None,
        second: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        before: Tensor | None,  # noqa: ARG004
        after: Tensor | None,  # noqa: ARG004
        eps: float,
        twice: bool,
        *port: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return sum and norm."""
        total, normed, middle, inverse = join(x, branch, second, weight, bias, eps)
        total = x.view_as(x) if branch is None else total
        ctx.save_for_backward(total, middle, inverse, weight)
        ctx.ported = len(port) > 0
        return (total, normed, normed.view_as(normed)) if twice else (total, normed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_total: Tensor, of_normed: Tensor, *more: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients; that of the map is the branches' too."""
        found, parts = join_back(of_normed, more[0] if len(more) > 0 else None, of_total, *ctx.saved_tensors)
        asked = ctx.needs_input_grad
        of_maps = found, *(found if one else None for one in asked[1:3])
        if ctx.ported:
            return *of_maps, *4 * [None], None, None, parts
        if not any(asked[3:7]):
            return *of_maps, *6 * [None]
        sums = add_all_up([parts])[0].view(4, -1).to(ctx.saved_tensors[-1].dtype)
        return *of_maps, *(sums[i] if asked[i + 3] else None for i in range(4)), None, None


def run_join(
    start: Callable[[Any], Any],
    x: Tensor,
    branch: Tensor | None,
    second: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return sum (nothing without a branch), norm, and what that took off and multiplied by at every position.

    Args:
        start: makes the kernel one that can be started.
        x: B, N, C.
        branch: of the same shape.
        second: another one.
        weight: C.
        bias: C.
        eps: of the norm.
    """
    x = x.contiguous()
    branch, second = (None if one is None else one.contiguous() for one in (branch, second))
    normed, total = torch.empty_like(x), x.new_empty(0) if branch is None else torch.empty_like(x)
    middle, inverse = (x.new_empty(x.shape[:2], dtype=torch.float32) for _ in range(2))
    count, constants = x.shape[0] * x.shape[1], _constants(x, VALUES)
    start(kernel("join"))[(-(-count // constants[1]),)](
        x,
        x if branch is None else branch,
        x if second is None else second,
        x if branch is None else total,  # which is not written to
        normed,
        middle,
        inverse,
        weight,
        bias,
        count,
        *constants,
        branch is not None,
        second is not None,
        eps,
        num_warps=WARPS,
    )
    return total, normed, middle, inverse


@torch.library.triton_op("saccade::join", mutates_args={})
def join(
    x: Tensor, branch: Tensor | None, second: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `run_join`."""
    return run_join(torch.library.wrap_triton, x, branch, second, weight, bias, eps)


def run_join_back(
    start: Callable[[Any], Any],
    of_normed: Tensor,
    more: Tensor | None,
    of_total: Tensor,
    total: Tensor,
    middle: Tensor,
    inverse: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the map, and parts of sums over positions: parts, 4 * C.

    The sums are the gradients of the norm's weight and bias, that of the map and that of the sum as it came.

    Args:
        start: makes the kernel one that can be started.
        of_normed: gradient of the norm, B, N, C.
        more: that is added to it.
        of_total: gradient of the sum from elsewhere.
        total: the sum.
        middle: what `run_join` returned.
        inverse: see there.
        weight: C.
    """
    of_normed, of_total, total = (x.contiguous() for x in (of_normed, of_total, total))
    more = None if more is None else more.contiguous()
    found, (tiles, programs) = torch.empty_like(total), _shares(total)
    parts = total.new_empty(programs, 4 * total.shape[2], dtype=torch.float32)
    start(kernel("join_back"))[(programs,)](
        of_normed,
        of_normed if more is None else more,
        of_total,
        total,
        middle,
        inverse,
        weight,
        found,
        parts,
        total.shape[0] * total.shape[1],
        programs,
        tiles,
        *_constants(total, VALUES_BACK),
        more is not None,
        num_warps=WARPS_BACK,
    )
    return found, parts


@torch.library.triton_op("saccade::join_back", mutates_args={})
def join_back(
    of_normed: Tensor,
    more: Tensor | None,
    of_total: Tensor,
    total: Tensor,
    middle: Tensor,
    inverse: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Tensor]:
    """See `run_join_back`."""
    return run_join_back(torch.library.wrap_triton, of_normed, more, of_total, total, middle, inverse, weight)


def _shares(x: Tensor) -> tuple[int, int]:
    """Return how many tiles a map has on the way back, and how many programs share them."""
    tiles = -(-x.shape[0] * x.shape[1] // _constants(x, VALUES_BACK)[1])
    return tiles, min(PROGRAMS, tiles)


def _constants(x: Tensor, values: int) -> tuple[int, int, int]:
    """Return what a kernel is compiled for: channels, and the sides of its tile."""
    wide = tile_side(x.shape[2])
    return x.shape[2], max(values // wide, 1), wide


@functools.cache
def kernel(name: str) -> Any:
    """Return a kernel, "join" or "join_back", ready to be compiled."""
    return triton_for(globals()).jit({"join": _join, "join_back": _join_back}[name])


def _join(
    x: tl.tensor,
    branch: tl.tensor,
    second: tl.tensor,
    total: tl.tensor,
    normed: tl.tensor,
    middle: tl.tensor,
    inverse: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    count: int,
    channels: tl.constexpr,
    rows: tl.constexpr,
    wide: tl.constexpr,
    has_branch: tl.constexpr,
    has_second: tl.constexpr,
    eps: tl.constexpr,
) -> None:
    place, column = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, wide)
    inside = column < channels
    there = (place < count)[:, None] & inside[None, :]
    at = place.to(tl.int64)[:, None] * channels + column[None, :]
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if has_branch:
        value += tl.load(branch + at, mask=there, other=0.0).to(tl.float32)
        if has_second:
            value += tl.load(second + at, mask=there, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=there)
        value = rounded.to(tl.float32)
    mean = tl.sum(value, 1) / channels
    value = tl.where(there, value - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 1) / channels + eps)
    slope = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    start = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    found = value * scale[:, None] * slope[None, :] + start[None, :]
    tl.store(normed + at, found.to(normed.dtype.element_ty), mask=there)
    tl.store(middle + place, mean, mask=place < count)
    tl.store(inverse + place, scale, mask=place < count)


def _join_back(
    of_normed: tl.tensor,
    more: tl.tensor,
    of_total: tl.tensor,
    total: tl.tensor,
    middle: tl.tensor,
    inverse: tl.tensor,
    weight: tl.tensor,
    found: tl.tensor,
    parts: tl.tensor,
    count: int,
    programs: int,
    tiles: int,
    channels: tl.constexpr,
    rows: tl.constexpr,
    wide: tl.constexpr,
    has_more: tl.constexpr,
) -> None:
    """Go through tiles as many apart as there are programs, adding up the rows of a tile each for itself."""
    column = tl.arange(0, wide)
    inside = column < channels
    slope = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    nothing = tl.zeros([rows, wide], tl.float32)
    of_weight, of_bias, of_before, of_after = nothing, nothing, nothing, nothing
    for tile in range(tl.program_id(0), tiles, programs):
        place = tile * rows + tl.arange(0, rows)
        there = (place < count)[:, None] & inside[None, :]
        at = place.to(tl.int64)[:, None] * channels + column[None, :]
        given = tl.load(of_normed + at, mask=there, other=0.0).to(tl.float32)
        if has_more:
            given += tl.load(more + at, mask=there, other=0.0).to(tl.float32)
        passed = tl.load(of_total + at, mask=there, other=0.0).to(tl.float32)
        value = tl.load(total + at, mask=there, other=0.0).to(tl.float32)
        mean = tl.load(middle + place, mask=place < count, other=0.0)
        scale = tl.load(inverse + place, mask=place < count, other=0.0)
        value = tl.where(there, (value - mean[:, None]) * scale[:, None], 0.0)
        of_weight += given * value
        of_bias += given
        of_after += passed
        given *= slope
        common = tl.sum(given, 1) / channels
        along = tl.sum(given * value, 1) / channels
        given = passed + (given - common[:, None] - value * along[:, None]) * scale[:, None]
        of_before += tl.where(there, given, 0.0)
        tl.store(found + at, given.to(found.dtype.element_ty), mask=there)
    parts += tl.program_id(0) * (4 * channels) + column
    tl.store(parts, tl.sum(of_weight, 0), mask=inside)
    tl.store(parts + channels, tl.sum(of_bias, 0), mask=inside)
    tl.store(parts + 2 * channels, tl.sum(of_before, 0), mask=inside)
    tl.store(parts + 3 * channels, tl.sum(of_after, 0), mask=inside)
