"""Self-attention on the CPU, by `attention_native.c`: nothing is copied on the way between the linear layers beside it.

PyTorch's own is made for many tokens, and for queries, keys and values that lie apart.
"""

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import handle_torch_function

from . import native
from .switch import on

TYPES = (*[ctypes.c_void_p] * 4, *[ctypes.c_int] * 4, ctypes.c_float)
ATTEND = native.Function(Path(__file__).with_suffix(".c"), "attend", TYPES)
LEAST = 1024  # numbers that are worth it
MOST_TOKENS = 512  # PyTorch's own is as fast from there on


def serves(x: Tensor) -> bool:
    """Tell whether the code attends among tokens, B, N, C."""
    return (
        on("attention")
        and native.fits(x)
        and x.numel() >= LEAST
        and x.shape[1] <= MOST_TOKENS
        and not torch.is_autocast_enabled("cpu")
        and ATTEND.library is not None
    )


def attend(qkv: Tensor, heads: int) -> Tensor:
    """Return what tokens gather, B, N, heads * d, from queries, keys and values, B, N, 3 * heads * d.

    Who listens to PyTorch's functions (`TorchFunctionMode`) hears of it as of one of them.
    """
    if torch._C._len_torch_function_stack():
        return handle_torch_function(attend, (qkv,), qkv, heads)
    if torch.is_grad_enabled() and qkv.requires_grad:
        return _Attended.apply(qkv, heads)
    return _run(qkv.contiguous(), heads, qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3))


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int) -> Tensor:
        qkv, norms = qkv.contiguous(), qkv.new_empty(len(qkv), heads, qkv.shape[1])
        ctx.heads = heads
        ctx.save_for_backward(qkv, norms)
        return _run(qkv, heads, qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3), norms)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        qkv, norms = ctx.saved_tensors
        return _run(qkv, ctx.heads, torch.empty_like(qkv), norms, grad.contiguous()), None


def _run(qkv: Tensor, heads: int, out: Tensor, norms: Tensor | None = None, grad: Tensor | None = None) -> Tensor:
    batch, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // (3 * heads)
    if ATTEND(qkv, grad, out, norms, batch, tokens, heads, width, width**-0.5):
        raise MemoryError(f"no memory for attention among {tokens} tokens; take a smaller batch")
    return out
