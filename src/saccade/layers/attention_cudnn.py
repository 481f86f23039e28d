"""Attention by cuDNN as one operator from queries, keys and values to tokens, in compiled training on a GPU.

A compiler that lays images out channels last takes B, heads, N, d for an image too and copies it to that layout, which
costs time and, with torch 2.11, the gradients of queries and keys: after an eager step in the same process they were
wrong, as if cuDNN's way back still read the output in that step's layout. Here nothing has four axes that a compiler
could see, and they are right (benchmarks/gradients.py).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import _disable_current_modes

from .exporting import compiles_for_gpu, is_constant
from .operators import define
from .switch import on


def serves(x: Tensor, heads: int, width: int) -> bool:
    """Tell whether PyTorch would take cuDNN for tokens B, N, C, in training that is compiled for a GPU.

    Args:
        x: the tokens, as a product reads them.
        heads: how many.
        width: channels of a head.
    """
    if not (on("attention_cudnn") and compiles_for_gpu(x) and torch.is_grad_enabled() and is_constant(x.shape[1])):
        return False
    half = x.dtype in (torch.float16, torch.bfloat16)
    return half and _chosen(x.device.index or 0, x.dtype == torch.float16, x.shape[1], heads, width)


@torch.compiler.assume_constant_result
def _chosen(index: int, float16: bool, tokens: int, heads: int, width: int) -> bool:
    with _disable_current_modes(), torch.enable_grad():
        dtype = torch.float16 if float16 else torch.bfloat16
        q = torch.empty(1, tokens, heads, width, dtype=dtype, device=f"cuda:{index}").transpose(1, 2).requires_grad_()
        return bool(torch._fused_sdp_choice(q, q, q) == SDPBackend.CUDNN_ATTENTION.value)


class Attended(torch.autograd.Function):
    """Self-attention of queries, keys and values, B, N, 3 * heads * d, to B, N, heads * d."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int) -> Tensor:
        """Return what every token gathered."""
        out, sums = torch.ops.saccade.attend_by_cudnn(qkv, heads)
        ctx.save_for_backward(qkv, out, sums)
        ctx.heads = heads
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of queries, keys and values."""
        return torch.ops.saccade.attend_by_cudnn_back(grad, *ctx.saved_tensors, ctx.heads), None


def _attend(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    query, key, value = by_heads(qkv.contiguous(), heads)
    out, sums, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(query, key, value, None, True)
    return out.transpose(1, 2).flatten(2).contiguous(), sums.flatten(2)


def _attend_back(grad: Tensor, qkv: Tensor, out: Tensor, sums: Tensor, heads: int) -> Tensor:
    given = [x.contiguous().unflatten(2, (heads, -1)).transpose(1, 2) for x in (grad, out)]
    seed, tokens = grad.new_empty((), dtype=torch.long), grad.shape[1]  # nothing is dropped, nobody reads it
    rest = (seed, seed, None, None, None, tokens, tokens, 0.0, False)
    found = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        given[0], *by_heads(qkv.contiguous(), heads), given[1], sums.contiguous().unsqueeze(3), *rest
    )
    return torch.stack([x.transpose(1, 2) for x in found], 2).flatten(2)


def by_heads(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values as B, heads, N, d."""
    query, key, value = qkv.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return query, key, value


def _shapes(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    batch, tokens, width = qkv.shape
    return qkv.new_empty(batch, tokens, width // 3), qkv.new_empty(batch, heads, tokens, dtype=torch.float32)


def _shape_back(grad: Tensor, qkv: Tensor, out: Tensor, sums: Tensor, heads: int) -> Tensor:  # noqa: ARG001
    return torch.empty_like(qkv)


define("attend_by_cudnn(Tensor qkv, int heads) -> (Tensor, Tensor)", _attend, _shapes, "CUDA")
define(
    "attend_by_cudnn_back(Tensor grad, Tensor qkv, Tensor out, Tensor sums, int heads) -> Tensor",
    _attend_back,
    _shape_back,
    "CUDA",
)
