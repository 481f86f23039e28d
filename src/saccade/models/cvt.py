"""CvT-13: attention whose queries, keys and values are projected by convolutions (community version, as in DRLoc)."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from timm.layers import DropPath, Mlp
from timm.models import generate_default_cfgs, register_model, register_notrace_module
from torch import Tensor, nn

from ..layers.numerics import upcast
from ._backbone import Pyramid, run_blocks
from ._builder import build, check_stages, default_cfg
from ._published import renamed


class CvT(Pyramid):
    """Three stages of strides 4, 8 and 16; no class token, no position table, no final norm.

    Args:
        img_size: accepted as by every model and not needed; any size works.
        in_chans: channels of the images.
        num_classes: logits; zero leaves the classifier out.
        dims: width of each stage.
        depths: blocks of each stage.
        num_heads: heads of each stage.
        head_dim: width of a head, whatever the stage's width.
        mlp_ratio: hidden width of the feed-forward part, in stage widths; one number or one for each stage.
        kv_stride: stride of the convolution that keys and values come from.
        drop_rate: dropout after attention and inside the feed-forward part.
        drop_path_rate: stochastic depth of the last block, growing from zero at the first.
        global_pool: "avg", or "" for the map itself (without a classifier).
    """

    default_out_indices: ClassVar[tuple[int, ...]] = (0, 1, 2)
    official_prefix: ClassVar[str] = "layers.0.0."

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,  # noqa: ARG002
        in_chans: int = 3,
        num_classes: int = 1000,
        dims: Sequence[int] = (64, 192, 384),
        depths: Sequence[int] = (1, 2, 10),
        num_heads: Sequence[int] = (1, 3, 6),
        head_dim: int = 64,
        mlp_ratio: float | Sequence[float] = 4.0,
        kv_stride: int = 2,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        global_pool: str = "avg",
    ) -> None:
        super().__init__()
        ratios = tuple(mlp_ratio) if isinstance(mlp_ratio, Sequence) else (mlp_ratio,) * len(dims)
        check_stages(dims=dims, depths=depths, num_heads=num_heads, mlp_ratio=ratios)
        if kv_stride < 1:
            raise ValueError(f"kv_stride={kv_stride} was given; it must be 1 or more")
        self.in_chans = in_chans
        self.num_features = dims[-1]
        self.stem = nn.Identity()
        rates = torch.linspace(0, drop_path_rate, sum(depths), device="cpu").split(list(depths))
        self.stages = nn.ModuleList(
            Stage(
                previous,
                dim,
                patch=7 if index == 0 else 3,
                stride=4 if index == 0 else 2,
                num_heads=num_heads[index],
                head_dim=head_dim,
                mlp_ratio=ratios[index],
                kv_stride=kv_stride,
                drop_rate=drop_rate,
                drop_paths=rates[index].tolist(),
            )
            for index, (previous, dim) in enumerate(pairwise([in_chans, *dims]))
        )
        self.norm = nn.Identity()
        self.feature_info = [
            {"num_chs": dim, "reduction": 4 * 2**index, "module": f"stages.{index}"} for index, dim in enumerate(dims)
        ]
        self.reset_classifier(num_classes, global_pool)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Average the last map, B, C, H, W, and classify it."""
        if self.global_pool == "avg":
            x = x.mean((2, 3))
        return x if pre_logits else self.head(x)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return timm's map from parameter names to layers, for layer-wise learning rates."""
        return {
            "stem": r"^stages\.0\.(?:embed|norm)\.",
            "blocks": r"^stages\.(\d+)"
            if coarse
            else [(r"^stages\.(\d+)\.(?:embed|norm)\.", (0,)), (r"^stages\.(\d+)\.blocks\.(\d+)", None)],
        }

    def convert(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename a published state dict to ours, without the localization head it was trained with."""
        if not self.is_official(state_dict):
            return dict(state_dict)
        converted = {}
        for key, name, value in renamed(state_dict, RENAMES):
            if key.endswith((".g", ".b")):
                value = value.flatten()  # 1, C, 1, 1
            elif value.shape[2:] == (1, 1):
                value = value.flatten(1)  # a 1x1 convolution is a linear layer
            converted[name] = value
        return converted


RENAMES = (
    (r"^layers\.(\d+)\.0\.(weight|bias)$", r"stages.\1.embed.\2"),
    (r"^layers\.(\d+)\.1\.(g|b)$", r"stages.\1.norm.\2"),
    (r"^layers\.(\d+)\.2\.layers\.(\d+)\.0\.norm\.", r"stages.\1.blocks.\2.norm1."),
    (r"^layers\.(\d+)\.2\.layers\.(\d+)\.1\.norm\.", r"stages.\1.blocks.\2.norm2."),
    (r"^layers\.(\d+)\.2\.layers\.(\d+)\.0\.fn\.to_(q|kv)\.net\.0\.", r"stages.\1.blocks.\2.attn.\3.conv."),
    (r"^layers\.(\d+)\.2\.layers\.(\d+)\.0\.fn\.to_(q|kv)\.net\.1\.", r"stages.\1.blocks.\2.attn.\3.norm."),
    (r"^layers\.(\d+)\.2\.layers\.(\d+)\.0\.fn\.to_(q|kv)\.net\.2\.", r"stages.\1.blocks.\2.attn.\3.proj."),
    (r"^layers\.(\d+)\.2\.layers\.(\d+)\.0\.fn\.to_out\.0\.", r"stages.\1.blocks.\2.attn.proj."),
    (r"^layers\.(\d+)\.2\.layers\.(\d+)\.1\.fn\.net\.0\.", r"stages.\1.blocks.\2.mlp.fc1."),
    (r"^layers\.(\d+)\.2\.layers\.(\d+)\.1\.fn\.net\.3\.", r"stages.\1.blocks.\2.mlp.fc2."),
    (r"^(stages\..*norm\d?\.)g$", r"\1weight"),
    (r"^(stages\..*norm\d?\.)b$", r"\1bias"),
)


class Stage(nn.Module):
    """Overlapping patch embedding, channel norm and blocks; inside, channels come last so that tokens are views."""

    def __init__(
        self,
        in_dim: int,
        dim: int,
        *,
        patch: int,
        stride: int,
        num_heads: int,
        head_dim: int,
        mlp_ratio: float,
        kv_stride: int,
        drop_rate: float,
        drop_paths: Sequence[float],
    ) -> None:
        super().__init__()
        self.grad_checkpointing = False
        self.embed = nn.Conv2d(in_dim, dim, patch, stride=stride, padding=patch // 2)
        self.norm = ChannelNorm(dim)
        self.blocks = nn.ModuleList(
            Block(
                dim,
                num_heads=num_heads,
                head_dim=head_dim,
                mlp_ratio=mlp_ratio,
                kv_stride=kv_stride,
                drop_rate=drop_rate,
                drop_path=drop_path,
            )
            for drop_path in drop_paths
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of smaller side, B, C, H, W."""
        x = self.embed(x).permute(0, 2, 3, 1).contiguous()
        x = run_blocks(self.blocks, self.norm(x), recompute=self.grad_checkpointing)
        return x.permute(0, 3, 1, 2)


class Block(nn.Module):
    """Convolutional attention and a feed-forward part, each after a norm, on B, H, W, C."""

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        head_dim: int,
        mlp_ratio: float,
        kv_stride: int,
        drop_rate: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.norm1 = ChannelNorm(dim)
        self.attn = ConvAttention(dim, num_heads=num_heads, head_dim=head_dim, kv_stride=kv_stride, drop_rate=drop_rate)
        self.norm2 = ChannelNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=drop_rate)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of the same shape."""
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class ConvAttention(nn.Module):
    """Attention from every place to a strided map; keys and values share one convolution."""

    def __init__(self, dim: int, *, num_heads: int, head_dim: int, kv_stride: int, drop_rate: float) -> None:
        super().__init__()
        inner = num_heads * head_dim
        self.num_heads, self.head_dim = num_heads, head_dim
        self.q = ConvProjection(dim, inner, stride=1)
        self.kv = ConvProjection(dim, 2 * inner, stride=kv_stride)
        self.proj = nn.Linear(inner, dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of the same shape, B, H, W, C."""
        heads = (self.num_heads, self.head_dim)
        q = self.q(x).flatten(1, 2).unflatten(-1, heads).transpose(1, 2)  # B, heads, HW, head_dim
        k, v = self.kv(x).flatten(1, 2).unflatten(-1, (2, *heads)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        y = y.transpose(1, 2).flatten(2).unflatten(1, x.shape[1:3])
        return self.drop(self.proj(y))


class ConvProjection(nn.Module):
    """Depthwise 3x3 convolution, batch norm and a linear layer, on B, H, W, C."""

    def __init__(self, dim: int, out_dim: int, *, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, stride=stride, padding=1, groups=dim, bias=False)
        self.norm = nn.BatchNorm2d(dim)
        self.proj = nn.Linear(dim, out_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return B, H / stride, W / stride, out_dim."""
        x = self.norm(self.conv(x.permute(0, 3, 1, 2)))
        return self.proj(x.permute(0, 2, 3, 1))


@register_notrace_module
class ChannelNorm(nn.Module):
    """Layer norm over the last axis with eps added to the standard deviation, not to the variance."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        centred = upcast(x)
        centred = centred - centred.mean(-1, keepdim=True)
        # a vector norm, not the root of a variance: its gradient is zero, not NaN, where all channels are equal
        deviation = torch.linalg.vector_norm(centred, dim=-1, keepdim=True) / math.sqrt(x.shape[-1])
        return (centred / (deviation + self.eps)).to(x.dtype) * self.weight + self.bias


default_cfgs = generate_default_cfgs({"cvt_13": default_cfg(stride=16, first_conv="stages.0.embed", license="mit")})


@register_model
def cvt_13(pretrained: bool = False, **kwargs: Any) -> CvT:
    """CvT-13: 1, 2 and 10 blocks of width 64, 192 and 384; 20 M parameters."""
    return build(CvT, "cvt_13", pretrained, kwargs, dims=(64, 192, 384), depths=(1, 2, 10), num_heads=(1, 3, 6))
