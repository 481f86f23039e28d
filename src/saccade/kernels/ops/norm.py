"""Branches added to a map and the layer norm of the sum, and the way back, one GPU kernel each way.

The gradient of the sum passes here whole, and so do those of all that is added up over positions: the norm's weight and
bias, the bias that the branch ends with and the one of what is added next. A compiler reads the map anew for each.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..compiling import HALVES, is_constant, trains_on_gpu
from ..triton.language import INSTALLED, launchable, tile_side
from ..triton.norm import kernel
from .add_up import add_up

MOST_CHANNELS = 1024  # a program holds whole positions
VALUES, WARPS = 2048, 4  # that a program has at a time, and its warps: the best that were timed on an H200
VALUES_BACK, WARPS_BACK, PROGRAMS = 1024, 2, 1056  # the same on the way back, and how many programs share it


def serves(x: Tensor, *norms: nn.Module) -> bool:
    """Whether the kernels take a map B, N, C before norms: in half precision, in training compiled for a GPU."""
    return (
        INSTALLED
        and trains_on_gpu(x)
        and x.dtype in HALVES
        and all(is_constant(side) for side in x.shape)
        and x.numel() > 0
        and x.shape[-1] <= MOST_CHANNELS
        and all(type(norm) is nn.LayerNorm and norm.weight is not None and norm.bias is not None for norm in norms)
    )


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
    ) -> tuple[Tensor, ...]:
        """Return sum and norm."""
        total, normed, middle, inverse = join(x, branch, second, weight, bias, eps)
        total = x.view_as(x) if branch is None else total
        ctx.save_for_backward(total, middle, inverse, weight)
        return (total, normed, normed.view_as(normed)) if twice else (total, normed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_total: Tensor, of_normed: Tensor, *more: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients; that of the map is the branches' too."""
        found, parts = join_back(of_normed, more[0] if len(more) > 0 else None, of_total, *ctx.saved_tensors)
        asked = ctx.needs_input_grad
        of_maps = found, *(found if one else None for one in asked[1:3])
        if not any(asked[3:7]):
            return *of_maps, *6 * [None]
        sums = add_up(parts)[0].view(4, -1).to(ctx.saved_tensors[-1].dtype)
        return *of_maps, *(sums[i] if asked[i + 3] else None for i in range(4)), None, None


@torch.library.triton_op("saccade::join", mutates_args={})
def join(
    x: Tensor, branch: Tensor | None, second: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return sum (nothing without a branch), norm, and what that took off and multiplied by at every position.

    Args:
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
    launchable(kernel("join"))[(-(-count // constants[1]),)](
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


def join_reference(
    x: Tensor, branch: Tensor | None, second: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `join`."""
    total = x + sum(one for one in (branch, second) if one is not None)
    mean, inverse = total.mean(-1), (total.var(-1, correction=0) + eps).rsqrt()
    normed = F.layer_norm(total, total.shape[-1:], weight, bias, eps)
    return x.new_empty(0) if branch is None else total, normed, mean, inverse


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
    """Return the gradient of the map, and parts of sums over positions: parts, 4 * C.

    The sums are the gradients of the norm's weight and bias, that of the map and that of the sum as it came.

    Args:
        of_normed: gradient of the norm, B, N, C.
        more: that is added to it.
        of_total: gradient of the sum from elsewhere.
        total: the sum.
        middle: what `join` returned.
        inverse: see there.
        weight: C.
    """
    of_normed, of_total, total = (x.contiguous() for x in (of_normed, of_total, total))
    more = None if more is None else more.contiguous()
    constants = _constants(total, VALUES_BACK)
    tiles = -(-total.shape[0] * total.shape[1] // constants[1])
    found, programs = torch.empty_like(total), min(PROGRAMS, tiles)
    parts = total.new_empty(programs, 4 * total.shape[2], dtype=torch.float32)
    launchable(kernel("join_back"))[(programs,)](
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
        *constants,
        more is not None,
        num_warps=WARPS_BACK,
    )
    return found, parts


def join_back_reference(
    of_normed: Tensor,
    more: Tensor | None,
    of_total: Tensor,
    total: Tensor,
    middle: Tensor,
    inverse: Tensor,
    weight: Tensor,
) -> tuple[Tensor, Tensor]:
    """See `join_back`; all sums in one part."""
    of_normed = of_normed if more is None else of_normed + more
    value = (total - middle[..., None]) * inverse[..., None]
    given = of_normed * weight
    found = given - given.mean(-1, keepdim=True) - value * (given * value).mean(-1, keepdim=True)
    found = of_total + found * inverse[..., None]
    return found, torch.cat([of_normed * value, of_normed, found, of_total], -1).sum((0, 1))[None]


def _constants(x: Tensor, values: int) -> tuple[int, int, int]:
    """Return what a kernel is compiled for: channels, and the sides of its tile."""
    wide = tile_side(x.shape[2])
    return x.shape[2], max(values // wide, 1), wide


REFERENCES = {"join": join_reference, "join_back": join_back_reference}
