"""Self-attention; of few tokens, in training compiled for a GPU, by kernels of our own or by products.

Tiles of the libraries' fused kernels are made for many.
"""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Attention
from torch import Tensor, nn

from . import attention_triton
from .exporting import compiles_for_gpu
from .linear import bias_left_to_reader, without_gradient_of_bias
from .numerics import as_products_read
from .parts import Due, due_by_image, ports_for
from .switch import on

FEW = 72  # tokens for which products are faster than the libraries' kernel: 64 and a class token


class SelfAttention(Attention):
    """timm's attention, by other kernels where they are faster; the same weights and numbers."""

    @classmethod
    def inside(cls, module: nn.Module) -> None:
        """Make every plain attention of timm inside a module one of these."""
        for attention in module.modules():
            if type(attention) is Attention:
                attention.__class__ = cls

    @property
    def _plain(self) -> bool:
        return getattr(self, "gate", None) is None and not self.attn_drop.p

    @property
    def _unnormed(self) -> bool:
        return isinstance(self.q_norm, nn.Identity) and isinstance(self.k_norm, nn.Identity)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return tokens, B, N, C, of tokens; masks as timm takes them."""
        masked = any(value is not None and value is not False for value in (*args, *kwargs.values()))
        plain, unnormed = not masked and self._plain, self._unnormed
        if not (plain and own_way(x)):
            return super().forward(x, *args, **kwargs)
        heads = self.num_heads
        if unnormed and attention_triton.serves(as_products_read(x), self.head_dim):
            qkv, before = without_gradient_of_bias(self.qkv, x)
            x = attention_triton.Attended.apply(qkv, before, heads, *ports_for(due_by_image(x, before)))
        elif x.shape[1] <= FEW:
            q, k, v = self.qkv(x).unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            x = attend_by_products(self.q_norm(q), self.k_norm(k), v).transpose(1, 2).flatten(2)
        else:
            return super().forward(x, *args, **kwargs)
        return self.proj_drop(self.proj(self.norm(x)))


def last_of(attention: nn.Module) -> nn.Module | None:
    """Return the linear layer whose output that of self-attention is."""
    return attention.proj if type(attention) is SelfAttention and not attention.proj_drop.p else None


def dues_of(attention: nn.Module, x: Tensor, tokens: int) -> list[Due]:
    """Return what gets its gradient in parts where so many tokens attend to each other, in as many images as others."""
    if type(attention) is not SelfAttention or not (attention._plain and attention._unnormed and own_way(x)):
        return []
    served = attention_triton.serves(x, attention.head_dim, tokens)
    return due_by_image(x, bias_left_to_reader(attention.qkv)) if served else []


def own_way(x: Tensor) -> bool:
    """Tell whether attention among tokens may be faster our way: in compiled training on a GPU."""
    return on("attention") and compiles_for_gpu(x) and torch.is_grad_enabled()


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
