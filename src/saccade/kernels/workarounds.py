"""Faults of compilers and the replacements that avoid them: applied even where kernels are switched off."""

import torch
from torch import Tensor

from ..layers.window import WindowAttention
from .fused import Fused
from .modules.attention import attend_by_products


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
