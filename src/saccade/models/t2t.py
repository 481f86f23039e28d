"""T2T-ViT: overlapping patches are turned into tokens step by step, then pass equal transformer blocks."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from timm.models import generate_default_cfgs, register_model, register_notrace_function
from torch import Tensor, nn

from ..layers.padding import pad_to
from ..layers.performer import Performer
from ..layers.position import resize_tokens
from ._backbone import run_blocks
from ._builder import build, default_cfg
from ._columnar import Block, Columnar
from ._published import renamed


class T2TViT(Columnar):
    """Tokens-to-token embedding of stride 16, class token, frozen sinusoid positions and pre-norm blocks.

    Args:
        img_size: size the position table is made for; other sizes get it resampled.
        in_chans: channels of the images.
        num_classes: logits; zero leaves the classifier out.
        embed_dim: width of the blocks.
        depth: number of blocks.
        num_heads: attention heads of a block.
        mlp_ratio: hidden width of the feed-forward part, in block widths.
        token_dim: width of the two token transformers.
        token_drop_rate: dropout inside the token transformers.
        drop_rate: dropout after the positions and inside the blocks.
        attn_drop_rate: dropout of attention weights in the blocks.
        drop_path_rate: stochastic depth of the last block, growing from zero at the first.
        global_pool: "token" for the class token, "avg" for the mean of the others, "" for all (without a classifier).
    """

    official_prefix: ClassVar[str] = "tokens_to_token."
    pools: ClassVar[tuple[str, ...]] = ("token", "avg")

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        embed_dim: int = 384,
        depth: int = 14,
        num_heads: int = 6,
        mlp_ratio: float = 3.0,
        token_dim: int = 64,
        token_drop_rate: float = 0.1,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        global_pool: str = "token",
    ) -> None:
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim={embed_dim} is not divisible by num_heads={num_heads}; choose a divisor")
        super().__init__(
            patch_embed=TokensToToken(in_chans, embed_dim, token_dim=token_dim, drop_rate=token_drop_rate),
            blocks=[
                Block(
                    embed_dim,
                    num_heads,
                    mlp_ratio=mlp_ratio,
                    proj_drop=drop_rate,
                    attn_drop=attn_drop_rate,
                    drop_path=rate,
                    norm_layer=nn.LayerNorm,
                )
                for rate in torch.linspace(0, drop_path_rate, depth, device="cpu").tolist()
            ],
            img_size=img_size,
            embed_dim=embed_dim,
            norm=nn.LayerNorm(embed_dim),
            drop_rate=drop_rate,
        )
        self.in_chans = in_chans
        self.reset_classifier(num_classes, global_pool)
        trunc_normal_(self.cls_token, std=0.02)
        self.apply(_init)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pick or average tokens, B, 1 + N, C, and classify."""
        if self.global_pool == "token":
            x = x[:, 0]
        elif self.global_pool == "avg":
            x = x[:, 1:].mean(1)
        return x if pre_logits else self.head(x)

    @staticmethod
    def init_classifier(module: nn.Module) -> None:
        """Draw a new classifier as every linear layer is."""
        _init(module)

    def convert(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename a published state dict to ours, without the localization head it may have been trained with."""
        if not self.is_official(state_dict):
            return dict(state_dict)
        found = {name: value for _, name, value in renamed(state_dict, RENAMES)}
        if "pos_embed" in found:
            found["pos_embed"] = resize_tokens(found["pos_embed"], self.grid_size)
        return found


RENAMES = (
    (r"^tokens_to_token\.attention([12])\.", r"patch_embed.split\1.performer."),
    (r"^tokens_to_token\.project\.", "patch_embed.project."),
    (r"\.mlp\.0\.", ".mlp.fc1."),
    (r"\.mlp\.2\.", ".mlp.fc2."),
)


class TokensToToken(nn.Module):
    """Three overlapping soft splits, 7x7 stride 4 and twice 3x3 stride 2, with a performer after the first two."""

    stride = 16

    def __init__(self, in_chans: int, embed_dim: int, *, token_dim: int = 64, drop_rate: float = 0.1) -> None:
        super().__init__()
        self.grad_checkpointing = False
        self.split1 = SoftSplit(in_chans, token_dim, patch=7, stride=4, padding=2, drop_rate=drop_rate)
        self.split2 = SoftSplit(token_dim, token_dim, patch=3, stride=2, padding=1, drop_rate=drop_rate)
        self.project = nn.Linear(token_dim * 9, embed_dim)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the token grid for an image size."""
        return _side(height), _side(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of tokens, B, embed_dim, H / 16, W / 16."""
        x = pad_to(x, 3)  # no 7x7 patch fits into less
        x = run_blocks([self.split1, self.split2], x, recompute=self.grad_checkpointing)
        tokens, grid = extract_patches(x, 3, stride=2, padding=1)
        return self.project(tokens).transpose(1, 2).unflatten(2, grid)


class SoftSplit(nn.Module):
    """Overlapping patches of a map, each flattened into a token, then a performer among them."""

    def __init__(self, dim: int, out_dim: int, *, patch: int, stride: int, padding: int, drop_rate: float) -> None:
        super().__init__()
        self.patch, self.stride, self.padding = patch, stride, padding
        self.performer = Performer(dim * patch**2, out_dim, drop_rate=drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """Map B, dim, H, W to B, out_dim, H', W', in the sizes of a convolution with the same window."""
        tokens, grid = extract_patches(x, self.patch, stride=self.stride, padding=self.padding)
        return self.performer(tokens).transpose(1, 2).unflatten(2, grid)


def extract_patches(x: Tensor, patch: int, *, stride: int, padding: int) -> tuple[Tensor, tuple[int, int]]:
    """Return what `F.unfold` does, tokens first (B, N, C * patch²), in one copy, and the grid of patches."""
    x = x.permute(0, 2, 3, 1)  # channels last, so that gradients come back as tokens too
    height, width = x.shape[1:3]
    # One division a side, and padding no further than the last patch: sizes stay short where they are symbolic.
    rows = (height + 2 * padding - patch + stride) // stride
    columns = (width + 2 * padding - patch + stride) // stride
    below = stride * (rows - 1) + patch - padding - height
    right = stride * (columns - 1) + patch - padding - width
    x = F.pad(x, (0, 0, padding, right, padding, below))
    x = x.unfold(1, patch, stride).unfold(2, patch, stride)  # B, rows, columns, C, patch, patch
    return x.flatten(3).flatten(1, 2), (rows, columns)


register_notrace_function(extract_patches)  # it counts with sizes


def _side(pixels: int) -> int:
    return ((max(pixels, 3) + 1) // 4 + 3) // 4  # a 7x7 split of stride 4, then two that halve and round up


def _init(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


default_cfgs = generate_default_cfgs(
    {
        # the first layer is linear on flattened patches: there is no convolution to adapt to other channel counts
        name: default_cfg(first_conv=(), crop_pct=0.9)
        for name in ("t2t_vit_7", "t2t_vit_12", "t2t_vit_14", "t2t_vit_24")
    }
)


@register_model
def t2t_vit_7(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT-7: 7 blocks of width 256; 4.3 M parameters."""
    return build(T2TViT, "t2t_vit_7", pretrained, kwargs, embed_dim=256, depth=7, num_heads=4, mlp_ratio=2.0)


@register_model
def t2t_vit_12(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT-12: 12 blocks of width 256; 6.9 M parameters."""
    return build(T2TViT, "t2t_vit_12", pretrained, kwargs, embed_dim=256, depth=12, num_heads=4, mlp_ratio=2.0)


@register_model
def t2t_vit_14(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT-14: 14 blocks of width 384; 21.5 M parameters."""
    return build(T2TViT, "t2t_vit_14", pretrained, kwargs, embed_dim=384, depth=14, num_heads=6, mlp_ratio=3.0)


@register_model
def t2t_vit_24(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT-24: 24 blocks of width 512; 64.1 M parameters."""
    return build(T2TViT, "t2t_vit_24", pretrained, kwargs, embed_dim=512, depth=24, num_heads=8, mlp_ratio=3.0)
