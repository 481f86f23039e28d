"""Self-attention, of few tokens in compiled training by products: tiles of the fused kernels are made for many."""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Attention
from torch import Tensor, nn

from .exporting import compiles_for_gpu

FEW = 72  # tokens: 64 and a class token; a tile of the fused kernel's gradient has 128


class SelfAttention(Attention):
    """timm's attention, which spells its products out where that is faster; the same weights and numbers."""

    @classmethod
    def inside(cls, module: nn.Module) -> None:
        """Make every plain attention of timm inside a module one of these."""
        for attention in module.modules():
            if type(attention) is Attention:
                attention.__class__ = cls

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return tokens, B, N, C, of tokens; masks as timm takes them."""
        masked = any(value is not None and value is not False for value in (*args, *kwargs.values()))
        plain = not masked and getattr(self, "gate", None) is None and not self.attn_drop.p
        if not (plain and products_serve(x)):
            return super().forward(x, *args, **kwargs)
        q, k, v = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        x = attend_by_products(self.q_norm(q), self.k_norm(k), v)
        return self.proj_drop(self.proj(self.norm(x.transpose(1, 2).flatten(2))))


def products_serve(x: Tensor) -> bool:
    """Tell whether attention among tokens B, N, C is faster by products: few of them, in compiled training on a GPU."""
    return compiles_for_gpu(x) and torch.is_grad_enabled() and x.shape[1] <= FEW


def attend_by_products(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """Attend with keys that nothing weighs added up to a multiple of eight: only aligned rows have fast products.

    Args:
        query: ..., N, d, as keys and values.
        key: with as many heads.
        value: with as many heads.
        bias: added to the logits, ..., N, N.
    """
    more = -key.shape[-2] % 8
    key, value = (F.pad(x, (0, 0, 0, more)) for x in (key, value))
    logits = query * query.shape[-1] ** -0.5 @ key.mT
    if bias is None and more:
        bias = logits.new_zeros(key.shape[-2] - more)
    if bias is not None:
        logits = logits + F.pad(bias, (0, more), value=float("-inf"))
    return logits.softmax(dim=-1) @ value
