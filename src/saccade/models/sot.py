"""SoT, the second-order transformer: class token and cross-covariances of the word tokens classify together."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from timm.layers import to_2tuple
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from ..layers.init import init_linear
from ..layers.position import resize_tokens
from ..layers.second_order import SecondOrder
from ..layers.token_embed_ablations import TOKEN_EMBEDS
from ..settings.values import require_choice
from ._builder import build, default_cfg
from ._columnar import Block, Columnar


class SoT(Columnar):
    """Convolutional tokens, a vision transformer and a second-order classification head.

    Args:
        img_size: image size the position table is made for; others are resampled on the fly. Images of 112 to 223
            pixels get tokens of 8 pixels, all others of 16, as published.
        in_chans: image channels.
        num_classes: classes; zero makes `forward` return the head's representation.
        embed_dim: token width.
        depth: number of blocks.
        num_heads: attention heads.
        mlp_ratio: width of a block's hidden layer in token widths.
        token_embed: "densenet", "resnet", "inception", "nonlocal" or "linear".
        dense_norm: batch norm inside the dense layers of "densenet", as the published code has it with newer versions
            of timm than the one it pins.
        patch_size: pixels a token instead of the choice by `img_size`: 4, 8 or 16, any for "linear".
        drop_rate: dropout of tokens and inside the blocks.
        attn_drop_rate: dropout of attention weights.
        drop_path_rate: stochastic depth of the last block; earlier blocks have proportionally less.
        cov_heads: heads of the second-order pooling.
        cov_dim: width of each.
        rep_drop: dropout of the second-order representation.
        global_pool: "" with zero classes makes `forward` return all tokens; pooling is the head's otherwise.
        head: other settings of the head (fusion, pooling, normalization, alpha, ...), see `SecondOrder`.
    """

    option_sources: ClassVar[tuple[type, ...]] = (SecondOrder,)
    option_hidden: ClassVar[tuple[str, ...]] = ("dim", "head_dim")
    official_prefix: ClassVar[str] = "visual_tokens."
    classifier: ClassVar[tuple[str, ...]] = ("head.class_fc", "head.word_fc")
    head: SecondOrder | nn.Identity

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        embed_dim: int = 240,
        depth: int = 12,
        num_heads: int = 4,
        mlp_ratio: float = 2.5,
        token_embed: Literal["densenet", "resnet", "inception", "nonlocal", "linear"] = "densenet",
        dense_norm: bool = False,
        patch_size: int | None = None,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        cov_heads: int = 6,
        cov_dim: int = 14,
        rep_drop: float = 0.0,
        global_pool: str | None = None,
        **head: Any,
    ) -> None:
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim={embed_dim} is not divisible by num_heads={num_heads}; choose a multiple")
        norm_layer: Any = partial(nn.LayerNorm, eps=1e-5)
        super().__init__(
            patch_embed=_embed(token_embed, dense_norm, img_size, patch_size, in_chans=in_chans, embed_dim=embed_dim),
            blocks=[
                Block(
                    embed_dim,
                    num_heads,
                    mlp_ratio=mlp_ratio,
                    qkv_bias=False,
                    proj_drop=drop_rate,
                    attn_drop=attn_drop_rate,
                    drop_path=drop_path_rate * index / max(1, depth - 1),
                    norm_layer=norm_layer,
                )
                for index in range(depth)
            ],
            img_size=img_size,
            embed_dim=embed_dim,
            norm=norm_layer(embed_dim),
            drop_rate=drop_rate,
        )
        self.in_chans = in_chans
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.apply(init_linear)
        self.head = SecondOrder(embed_dim, 0, num_heads=cov_heads, head_dim=cov_dim, drop_rate=rep_drop, **head)
        self.reset_classifier(num_classes, global_pool)

    @property
    def num_features(self) -> int:  # type: ignore[override]
        """Width of the tokens; without classes, that of what `forward` returns."""
        return self.embed_dim if self.num_classes else self.head_hidden_size

    @property
    def head_hidden_size(self) -> int:
        """Width of what `forward_head(pre_logits=True)` returns."""
        return self.head.width if isinstance(self.head, SecondOrder) and self.pooled else self.embed_dim

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Classify normalised tokens, or return the representation: class token, then pooled words."""
        return self.head(x, pre_logits=pre_logits) if isinstance(self.head, SecondOrder) and self.pooled else x

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the linear classifiers of the head.

        Args:
            num_classes: zero makes `forward` return the representation.
            global_pool: None keeps the head's pooling; "" makes `forward` return all tokens and needs zero classes.
        """
        if global_pool not in (None, "") or (global_pool == "" and num_classes):
            raise ValueError(
                f"global_pool={global_pool!r} with {num_classes} classes was given; SoT pools in its head (choose "
                "with pooling= when building), None keeps that, and '' with zero classes returns the tokens"
            )
        self.num_classes = num_classes
        self.pooled = global_pool is None
        if isinstance(self.head, SecondOrder):
            self.head.reset(num_classes)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the blocks, norm and head that the chosen outputs do not need; return the outputs' indices."""
        take = super().prune_intermediate_layers(indices, prune_norm=prune_norm, prune_head=prune_head)
        if prune_head:
            self.head = nn.Identity()  # its pooling has parameters too
        return take

    def convert(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename a published state dict to ours and fit the position table to this model's grid."""
        out = dict(state_dict)
        if self.is_official(out):
            start = "weight" if "classifier.representation.norm.bias" in out else "start"  # layer norm, or svPN
            out = {_rename(key, start): value for key, value in out.items()}
            if isinstance(self.head, SecondOrder) and self.head.class_fc is None and self.head.word_fc is not None:
                # the published head always has a classifier of the class token, used or not
                out = {key: value for key, value in out.items() if not key.startswith("head.class_fc.")}
        table = out.get("pos_embed")
        if table is not None and table.shape[1] != self.pos_embed.shape[1]:
            out["pos_embed"] = resize_tokens(table, self.grid_size)
        return out


def _embed(
    kind: str, norm: bool, img_size: int | tuple[int, int], patch_size: int | None, *, in_chans: int, embed_dim: int
) -> nn.Module:
    """Build the token embedding; the published code derives its stride from the image size."""
    require_choice("token_embed", kind, TOKEN_EMBEDS)
    if norm and kind != "densenet":
        raise ValueError(f"dense_norm=True was given with token_embed={kind!r}, but it only works with 'densenet'")
    sides = to_2tuple(img_size)
    if patch_size is not None:
        stride = patch_size
    elif kind == "linear":
        stride = max(1, min(sides) // 14)
    else:
        stride = 8 if all(side // 112 == 1 for side in sides) else 16
    options: dict[str, Any] = {"norm": True} if norm else {}
    return TOKEN_EMBEDS[kind](in_chans=in_chans, embed_dim=embed_dim, stride=stride, **options)


def _rename(key: str, start: str) -> str:
    """Return our name of a published entry; unknown ones keep theirs."""
    if key == "classifier.representation.norm.weight":
        return f"head.pool.norm.{start}"
    for pattern, name in NAMES:
        renamed, found = re.subn(pattern, name, key)
        if found:
            return renamed
    return key


NAMES: tuple[tuple[str, Any], ...] = (
    (r"^visual_tokens\.tokens\.stem\.", "patch_embed.stem."),
    (r"^visual_tokens\.tokens\.(transition|proj)\.", "patch_embed.proj."),
    (
        r"^visual_tokens\.tokens\.stage\.(\d+)\.denselayer(\d+)\.",
        lambda m: f"patch_embed.blocks.{m[1]}.layers.{int(m[2]) - 1}.",
    ),
    # the non-local embedding is one flat list of convolution, norm, ReLU and non-local block, twice
    (
        r"^visual_tokens\.tokens\.stage\.(\d+)\.(weight|bias|running_\w+|num_batches_tracked)$",
        lambda m: f"patch_embed.blocks.{int(m[1]) // 4}.{'bn' if int(m[1]) % 4 else 'conv'}.{m[2]}",
    ),
    (
        r"^visual_tokens\.tokens\.stage\.(\d+)\.(W|bn_norm|g|theta|phi|shortcut)\.",
        lambda m: f"patch_embed.blocks.{int(m[1]) // 4}.mix.{ {'W': 'out', 'bn_norm': 'norm'}.get(m[2], m[2]) }.",
    ),
    (r"^visual_tokens\.tokens\.stage\.", "patch_embed.blocks."),
    (r"^classifier\.(representation\.wr|dr)\.", "head.pool.proj."),
    (r"^classifier\.representation\.norm\.", "head.pool.norm."),
    (r"^classifier\.dim\.", "head.hidden."),
    (r"^classifier\.visual_fc\.", "head.word_fc."),
    (r"^classifier\.cls_fc\.", "head.class_fc."),
)


def _cfg(img_size: int = 224) -> dict[str, Any]:
    return default_cfg(img_size, first_conv="patch_embed.stem.0", classifier=("head.class_fc", "head.word_fc"))


default_cfgs = generate_default_cfgs(
    {
        "sot_7": _cfg(112),
        "sot_tiny": _cfg(),
        "sot_small": _cfg(),
        "sot_base": _cfg(),
    }
)


@register_model
def sot_7(pretrained: bool = False, **kwargs: Any) -> SoT:
    """Seven layers for 112-pixel images: the model of the paper's ablations."""
    size = {"img_size": 112, "embed_dim": 256, "depth": 7, "num_heads": 4, "mlp_ratio": 2.0, "cov_dim": 14}
    return build(SoT, "sot_7", pretrained, kwargs, **size)


@register_model
def sot_tiny(pretrained: bool = False, **kwargs: Any) -> SoT:
    """Twelve layers, 8 M parameters."""
    size = {"embed_dim": 240, "depth": 12, "num_heads": 4, "mlp_ratio": 2.5, "cov_dim": 14}
    return build(SoT, "sot_tiny", pretrained, kwargs, **size)


@register_model
def sot_small(pretrained: bool = False, **kwargs: Any) -> SoT:
    """Fourteen layers, 27 M parameters."""
    size = {"embed_dim": 384, "depth": 14, "num_heads": 6, "mlp_ratio": 3.5, "cov_dim": 24, "rep_drop": 0.5}
    return build(SoT, "sot_small", pretrained, kwargs, **size)


@register_model
def sot_base(pretrained: bool = False, **kwargs: Any) -> SoT:
    """Twenty-four layers, 77 M parameters."""
    size = {"embed_dim": 528, "depth": 24, "num_heads": 8, "mlp_ratio": 3.0, "cov_dim": 38, "rep_drop": 0.7}
    return build(SoT, "sot_base", pretrained, kwargs, **size)
