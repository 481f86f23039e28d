"""Attention among few tokens, one GPU kernel each way.

Written out it is a dozen small kernels, products of a few rows and copies between them, each of which takes as long to
start as to run; tiles of the libraries' fused kernels are made for many tokens. Here a program has one head of one
image, all its tokens at once, and reads and writes what the linear layers beside it make and take.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..compiling import HALVES, compiles_for_gpu, is_constant, shared_memory
from ..triton.attention import kernel
from ..triton.language import INSTALLED, launchable, tile_side
from .add_up import add_up

MOST_TOKENS, MOST_CHANNELS = 128, 64  # of a head: what the registers hold
ROOM = 98_312  # bytes of shared memory that the largest tile takes, at most (sm_80 to sm_120, Triton 3.6)


def serves(x: Tensor, width: int) -> bool:
    """Whether the kernel takes tokens B, N, C: few, in half precision, in code compiled for a GPU.

    Args:
        x: the tokens, as a product reads them.
        width: channels of a head.
    """
    if not (INSTALLED and compiles_for_gpu(x) and shared_memory(x) >= ROOM):
        return False
    few = is_constant(x.shape[1]) and x.shape[1] <= MOST_TOKENS and width <= MOST_CHANNELS
    return few and x.dtype in HALVES


class Attended(torch.autograd.Function):
    """Self-attention of queries, keys and values, B, N, 3 * heads * d, to B, N, heads * d.

    Args:
        qkv: queries, keys and values.
        before: a bias that they have in them already, without a gradient from there; it gets its own here.
        heads: how many.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, before: Tensor | None, heads: int) -> Tensor:
        """Return what every token gathered."""
        ctx.save_for_backward(qkv)
        ctx.heads, ctx.dtype = heads, None if before is None else before.dtype
        return attend(qkv, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of queries, keys and values, from the weights computed once more, and of the bias."""
        of_before = ctx.needs_input_grad[1]
        of_qkv, parts = attend_back(grad, *ctx.saved_tensors, ctx.heads, of_before)
        return of_qkv, add_up(parts)[0].to(ctx.dtype) if of_before else None, None


@torch.library.triton_op("saccade::attention_forward", mutates_args={})
def attend(qkv: Tensor, heads: int) -> Tensor:
    """Return what every token gathered, B, N, heads * d.

    Args:
        qkv: queries, keys and values, B, N, 3 * heads * d.
        heads: how many.
    """
    qkv = qkv.contiguous()
    out = qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)
    constants, options = _constants(qkv, heads)
    launchable(kernel("attend"))[(qkv.shape[0] * heads,)](qkv, out, *constants, **options)
    return out


def attend_reference(qkv: Tensor, heads: int) -> Tensor:
    """See `attend`."""
    q, k, v = qkv.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@torch.library.triton_op("saccade::attention_backward", mutates_args={})
def attend_back(grad: Tensor, qkv: Tensor, heads: int, sums: bool) -> tuple[Tensor, Tensor]:
    """Return the gradient of queries, keys and values, B, N, 3 * heads * d, and if asked its sums, B, 3 * heads * d.

    Args:
        grad: of what every token gathered, B, N, heads * d.
        qkv: queries, keys and values, B, N, 3 * heads * d.
        heads: how many.
        sums: return them, else nothing.
    """
    grad, qkv = grad.contiguous(), qkv.contiguous()
    out, parts = torch.empty_like(qkv), qkv.new_empty(len(qkv) if sums else 0, qkv.shape[2], dtype=torch.float32)
    constants, options = _constants(qkv, heads)
    launchable(kernel("attend_back"))[(qkv.shape[0] * heads,)](
        grad, qkv, out, parts if sums else qkv, *constants, sums, **options
    )
    return out, parts


def attend_back_reference(grad: Tensor, qkv: Tensor, heads: int, sums: bool) -> tuple[Tensor, Tensor]:
    """See `attend_back`."""
    q, k, v = qkv.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    given, factor = grad.unflatten(2, (heads, -1)).transpose(1, 2), q.shape[-1] ** -0.5
    weights = (q @ k.mT * factor).softmax(-1)
    of_weights = given @ v.mT
    of_logits = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True)) * factor
    found = torch.stack([of_logits @ k, of_logits.mT @ q, weights.mT @ given])  # 3, B, heads, N, d
    out = found.permute(1, 3, 0, 2, 4).flatten(2)
    return out, out.sum(1) if sums else out.new_empty(0, out.shape[2])


def _constants(qkv: Tensor, heads: int) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return what a kernel is compiled for, tokens, heads, channels and the tile's sides, and how."""
    tokens, width = qkv.shape[1], qkv.shape[2] // (3 * heads)
    tall = tile_side(tokens)
    return (tokens, heads, width, tall, tile_side(width)), {"num_warps": min(tall // 16, 4)}


REFERENCES = {"attend": attend_reference, "attend_back": attend_back_reference}
