"""Faults of compilers and the replacements that avoid them: applied even where kernels are switched off."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..layers.window import WindowAttention
from .fused import Fused


class WindowAttentionByProducts(Fused, WindowAttention):
    """Window attention whose products are spelt out where it is compiled for training on CUDA.

    There a bias that is trained gets a memory layout that the backward pass of the fused kernel refuses (torch 2.11).
    """

    plain = WindowAttention
    forward = WindowAttention.forward  # only `attend` differs

    def attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        """Attend by products where the fused kernel would fail."""
        if torch.compiler.is_compiling() and query.is_cuda and bias.requires_grad:
            return attend_by_products(query, key, value, bias)
        return super().attend(query, key, value, bias)


def attend_by_products(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attend with keys padded to a multiple of eight and masked there: only aligned rows have fast products.

    Args:
        query: ..., N, d, as keys and values.
        key: with as many heads.
        value: with as many heads.
        bias: added to the logits, ..., N, N.
    """
    more = -key.shape[-2] % 8
    key, value = (F.pad(x, (0, 0, 0, more)) for x in (key, value))
    logits = query * query.shape[-1] ** -0.5 @ key.mT + F.pad(bias, (0, more), value=float("-inf"))
    return logits.softmax(dim=-1) @ value
