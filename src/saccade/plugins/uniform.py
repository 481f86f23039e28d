"""Uniform attention heads: the variants A, B and C of the Context Broadcasting paper."""

import copy
from collections.abc import Sequence
from typing import Any, Literal

import torch
from timm.models.vision_transformer import Attention
from torch import Tensor, nn
from torch.nn import functional as F

from ..layers.broadcast import token_mean
from ..settings.values import require_choice
from .attach import Handle
from .context import choose_blocks
from .registry import register_plugin
from .tokens import Block, Host, HostError, require_blocks

VARIANTS = ("A", "B", "C")


@register_plugin("uniform")
class UniformHead:
    """Add a uniform head to every attention layer.

    A: the last head becomes uniform, without query and key. B: as A, with that head twice as wide, so that the size
    stays the same. C: all heads are kept, and a uniform one of width 2 * dim is added; the paper only gives the total
    size (ViT-S grows from 22 to 29 million parameters, 4 * dim * dim a layer). Kept parts start from the model's
    weights; added ones have no effect at first.

    Detaching restores the attention as it was when this was attached, without later training.

    Args:
        variant: "A", "B" or "C".
        layers: "all", "upper" half, or indices of blocks.
    """

    def __init__(
        self, variant: Literal["A", "B", "C"] = "A", *, layers: Literal["upper", "all"] | Sequence[int] = "all"
    ) -> None:
        require_choice("variant", variant, VARIANTS)
        self.variant = variant
        self.layers = layers

    def install(self, host: Host, handle: Handle) -> None:
        """Replace the attention of the chosen blocks."""
        require_blocks(host, "UniformHead")
        for block in choose_blocks(host, self.layers, title="UniformHead"):
            attention = self._find(host, block)
            parent = host.model.get_submodule(block.path)
            widths = {"A": attention.head_dim, "B": 2 * attention.head_dim, "C": 2 * attention.qkv.in_features}
            kept = attention.num_heads if self.variant == "C" else attention.num_heads - 1
            new = UniformAttention(attention, heads=kept, width=widths[self.variant])
            handle.replace(parent, "attn", new.train(attention.training))

    def _find(self, host: Host, block: Block) -> Attention:
        attention: Any = getattr(host.model.get_submodule(block.path), "attn", None)
        kind = getattr(type(attention), "plain", type(attention))  # kernels name the plain class that they replace
        if kind is not Attention or _between_heads(attention):
            raise HostError(
                "UniformHead replaces timm's plain attention (a `qkv` and a `proj` layer, without mixing or gating "
                f"of heads), but {block.path} of {host.name} has {type(attention).__name__}. If other blocks have "
                "it, name them with blocks=[...]"
            )
        if self.variant != "C" and attention.num_heads < 2:
            raise HostError(
                f"{block.path} of {host.name} has only one head, but variant {self.variant} must keep another one"
            )
        return attention


def _between_heads(attention: Attention) -> bool:
    norm = getattr(attention, "norm", None)
    return getattr(attention, "gate", None) is not None or not isinstance(norm, nn.Identity | None)


class UniformAttention(nn.Module):
    """Attention whose last head is uniform: it averages values over all tokens.

    Args:
        attention: the original attention, whose weights are used.
        heads: number of its heads to keep.
        width: width of the uniform head, whose values are those of the next head, if any, and new ones.
    """

    def __init__(self, attention: Attention, *, heads: int, width: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, attention.head_dim
        self.q_norm, self.k_norm = copy.deepcopy(attention.q_norm), copy.deepcopy(attention.k_norm)
        self.attn_drop, self.proj_drop = copy.deepcopy(attention.attn_drop), copy.deepcopy(attention.proj_drop)
        old, proj = attention.qkv, attention.proj
        like = {"device": old.weight.device, "dtype": old.weight.dtype}
        inner = heads * self.head_dim
        bias = old.bias is not None
        self.qkv = nn.Linear(old.in_features, 3 * inner, bias=bias, **like)
        self.value = nn.Linear(old.in_features, width, bias=bias, **like)
        self.proj = nn.Linear(inner + width, proj.out_features, bias=proj.bias is not None, **like)
        nn.init.trunc_normal_(self.value.weight, std=0.02)
        with torch.no_grad():
            self._take_rows(old.weight, "weight")
            if bias:
                self.value.bias.zero_()
                self._take_rows(old.bias, "bias")
            self.proj.weight.zero_()
            self.proj.weight[:, : proj.in_features] = proj.weight
            if proj.bias is not None:
                self.proj.bias.copy_(proj.bias)

    def _take_rows(self, old: Tensor, name: str) -> None:
        query, key, value = old.chunk(3)
        inner = self.num_heads * self.head_dim
        getattr(self.qkv, name).copy_(torch.cat([query[:inner], key[:inner], value[:inner]]))
        getattr(self.value, name)[: len(value) - inner] = value[inner:]

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Apply attention, B, N, C to B, N, C."""
        if attn_mask is not None or is_causal:
            raise ValueError("a uniform head attends to all tokens; attn_mask and is_causal are not supported")
        B, N, _ = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        drop = self.attn_drop.p if self.training else 0.0
        heads = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, dropout_p=drop)
        heads = heads.transpose(1, 2).flatten(2)
        # The mean of values equals the value of the mean.
        uniform = self.value(token_mean(x)).expand(-1, N, -1)
        return self.proj_drop(self.proj(torch.cat([heads, uniform], dim=-1)))
