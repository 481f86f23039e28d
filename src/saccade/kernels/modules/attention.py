"""timm's attention among few tokens, in training compiled for a GPU: by a kernel or by products.

Tiles of the libraries' fused kernels are made for many.
"""

from typing import Any

import torch.nn.functional as F
from timm.layers import Attention
from torch import Tensor, nn

from ..compiling import trains_on_gpu
from ..fused import Fused
from ..ops.attention import Attended, serves
from ..precision import Run, as_products_read

FEW_TOKENS = 72  # tokens for which products are faster than the libraries' kernel: 64 and a class token


class FusedAttention(Fused, Attention):
    """timm's attention."""

    plain = Attention

    @classmethod
    def refuses(cls, module: Any) -> str | None:
        """Why this module cannot be replaced."""
        if getattr(module, "gate", None) is not None:
            return "it has a gate"
        return "it uses attention dropout" if module.attn_drop.p else None

    def takes(self, x: Tensor, *args: Any, **kwargs: Any) -> bool:
        """Whether tokens attend without a mask, in training compiled for a GPU, and are few."""
        masked = any(value is not None and value is not False for value in (*args, *kwargs.values()))
        if masked or not trains_on_gpu(x) or self.refuses(self) is not None:
            return False
        return x.shape[1] <= FEW_TOKENS or self._has_kernel(x)

    def fused(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        """Return tokens, B, N, C."""
        return self.run(Run(), x)

    def run(self, run: Run, x: Tensor) -> Tensor:
        """Return tokens, B, N, C, by the weights of a run."""
        heads, trains = self.num_heads, trains_on_gpu(x)
        if trains and self._has_kernel(x):
            before = run.cut_off(self.qkv)
            x = Attended.apply(run.linear(self.qkv, x), before, heads)
        else:
            q, k, v = run.linear(self.qkv, x).unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            attend = attend_by_products if trains and x.shape[1] <= FEW_TOKENS else F.scaled_dot_product_attention
            x = attend(self.q_norm(q), self.k_norm(k), v).transpose(1, 2).flatten(2)
        return self.proj_drop(run.linear(self.proj, self.norm(x)))

    def _has_kernel(self, x: Tensor) -> bool:
        unnormed = isinstance(self.q_norm, nn.Identity) and isinstance(self.k_norm, nn.Identity)
        return unnormed and serves(as_products_read(x), self.head_dim)


def shares(run: Run, attention: nn.Module, x: Tensor) -> bool:
    """Whether `attend` reads the weights of a run."""
    return type(attention) is FusedAttention and (attention.takes(x) or (run.converts and converted(attention)))


def converted(attention: nn.Module) -> bool:
    """Whether the weights of attention are converted with those of other layers, where any are."""
    return type(attention) is FusedAttention and attention.fused_attn and attention.refuses(attention) is None


def last_of(run: Run, attention: Any, x: Tensor) -> nn.Module | None:
    """Return the linear layer that ends attention by the weights of a run, or None."""
    return attention.proj if shares(run, attention, x) and not attention.proj_drop.p else None


def attend(run: Run, attention: Any, x: Tensor) -> Tensor:
    """Return what attention makes of tokens, by the weights of a run where it can."""
    return attention.run(run, x) if shares(run, attention, x) else attention(x)


def attend_by_products(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """Attend with keys padded to a multiple of eight and masked there: only aligned rows have fast products.

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
