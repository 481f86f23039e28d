"""An additional attention or MLP layer."""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..settings.values import require_choice
from .attach import Handle
from .context import choose_blocks
from .masks import Members, WithMask
from .registry import register_plugin
from .tokens import Block, HookPoint, Host, HostError, require_blocks

Kind = Literal["attention", "mlp"]
KINDS = ("attention", "mlp")


@register_plugin("extra_block")
class ExtraBlock:
    """The experiment of "Scratching Visual Transformer's Back with Uniform Attention", section 3: a single extra layer.

    The paper trains an eight-layer ViT with an additional attention layer or MLP at its last layer, at nearly the same
    cost. Here the layer is a pre-norm residual branch after a block, by default the last; the MLP with `mlp_ratio` = 2
    has as many parameters as the attention, 4 * dim * dim. It has random weights, so it has to be trained.

    Args:
        kind: "attention" or "mlp".
        position: index of the block to insert after; negative ones count from the last.
        num_heads: heads of the attention; default: like the model, or one for each 64 channels.
        mlp_ratio: ratio of hidden to token width.
    """

    name: ClassVar[str] = "extra_block"

    def __init__(
        self, *, kind: Kind = "attention", position: int = -1, num_heads: int | None = None, mlp_ratio: float = 2.0
    ) -> None:
        require_choice("kind", kind, KINDS)
        if num_heads is not None and num_heads < 1:
            raise ValueError(f"num_heads={num_heads} was given; it must be at least 1")
        if not mlp_ratio > 0:
            raise ValueError(f"mlp_ratio={mlp_ratio} was given; it must be above 0")
        self.kind: Kind = kind
        self.position = position
        self.num_heads = num_heads
        self.mlp_ratio = mlp_ratio

    def install(self, host: Host, handle: Handle) -> None:
        """Add the layer after the chosen block."""
        require_blocks(host, "ExtraBlock")
        (block,) = choose_blocks(host, [self.position], title="ExtraBlock")
        _check(host, block)
        parent = host.model.get_submodule(block.path)
        members = Members(host, "all")
        members.install(host, handle)
        name = handle.add(parent, self.name, self.build(host, block))
        handle.listen(HookPoint(block.path, "output", block.end.dim), WithMask(parent.get_submodule(name), members))

    def build(self, host: Host, block: Block) -> nn.Module:
        """Build the layer for tokens of the block's width."""
        dim = block.end.dim
        if self.kind == "mlp":
            return ExtraMlp(dim, hidden_dim=max(round(dim * self.mlp_ratio), 1))
        heads = self.num_heads or _heads(host.model.get_submodule(block.path), dim)
        if dim % heads:
            raise HostError(f"num_heads={heads} does not divide the width {dim} of {host.name}; choose a divisor of it")
        return ExtraAttention(dim, num_heads=heads, causal=host.causal)

    def __repr__(self) -> str:
        return f"ExtraBlock({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class ExtraAttention(nn.Module):
    """A pre-norm residual attention layer on tokens B, N, C."""

    def __init__(self, dim: int, *, num_heads: int, causal: bool = False) -> None:
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.qkv = _linear(dim, 3 * dim)
        self.proj = _linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return x + attention; `mask`, B, N, is True for tokens other than padding."""
        _check_tokens(x)
        B, N, C = x.shape
        q, k, v = self.qkv(self.norm(x)).view(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        seen = None
        if mask is not None:
            # Tokens attend to themselves, so that padding does not become NaN.
            seen = mask[:, None, None, :] | torch.eye(N, dtype=torch.bool, device=x.device)
            if self.causal:
                seen = seen & torch.ones(N, N, dtype=torch.bool, device=x.device).tril()
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=self.causal and mask is None)
        return x + self.proj(heads.transpose(1, 2).reshape(B, N, C))


class ExtraMlp(nn.Module):
    """A pre-norm residual MLP on tokens B, N, C."""

    def __init__(self, dim: int, *, hidden_dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.fc1 = _linear(dim, hidden_dim)
        self.fc2 = _linear(hidden_dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Return x + MLP."""
        _check_tokens(x)
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


def _check(host: Host, block: Block) -> None:
    reason = None
    if block.windowed:
        reason = "attends within windows"
    elif block.end.channels_first or host.layout != "NLC":
        reason = "belongs to a network that returns maps"
    if reason is not None:
        raise HostError(
            f"ExtraBlock adds a layer for tokens B, N, C, but {block.path} of {host.name} {reason}; choose a "
            "ViT-like network, such as vit_tiny_patch16_224, DeiT or BERT"
        )


def _check_tokens(x: Tensor) -> None:
    if x.ndim != 3:
        raise ValueError(f"an extra block takes tokens B, N, C, but the previous block returned {tuple(x.shape)}")


def _heads(block: nn.Module, dim: int) -> int:
    counts = [
        getattr(module, name, None) for module in block.modules() for name in ("num_heads", "num_attention_heads")
    ]
    return next((heads for heads in counts if isinstance(heads, int) and dim % heads == 0), max(dim // 64, 1))


def _linear(width: int, out: int) -> nn.Linear:
    layer = nn.Linear(width, out)
    nn.init.trunc_normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
    return layer
