"""NomMer: every place of a map nominates its context: convolution, window attention or compressed global attention."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from timm.layers import DropPath, Mlp, to_2tuple
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from ..layers.dct import plain_attention
from ..layers.downsample import PatchConv
from ..layers.init import init_linear
from ..layers.nominate import CANDIDATES, Nomination, Synergy
from ..layers.position import resize_grid
from ..layers.window import WindowAttention, extend, resize_bias_table
from ._backbone import Pyramid, run_blocks
from ._builder import build, default_cfg, per_stage
from ._published import NOMMER_CONSTANTS, NOMMER_NAMES, pack_frequencies, rename

STAGES = 4


class NomMer(Pyramid):
    """Four stages: two of synergistic blocks (S-NomMer), two of global attention (G-NomMer), a class token in the last.

    The defaults are the published networks. Options give the paper's ablations.

    Args:
        img_size: size the position table is made for; images of other sizes get it resampled.
        in_chans: image channels.
        num_classes: 0 leaves the classifier out.
        global_pool: "token" classifies the class token, "avg" the mean of the others, "" does not pool
            (without a classifier).
        embed_dim: width of the first stage; every further stage doubles it.
        depths: blocks of each stage.
        num_heads: attention heads of each stage.
        mlp_ratios: hidden width of each stage's feed-forward layers over its width.
        synergistic: which stages have S-NomMer blocks. In the last one the class token has no place on the map, hence
            no convolution and no window: it takes part in the global attention, beside the blocks' tokens, and that is
            its context.
        candidates: what an S-NomMer block nominates between: "cnn", "window", "global", or some of them.
        nomination: "hard" (one candidate a place) or "soft" (mixed by a softmax).
        temperature: of the nomination's softmax.
        window_size: side of the attention windows.
        dct_sizes: side of the DCT blocks of each stage; 8, 4, 2, 1 sees a map as equally many tokens in every stage.
        cnn_reduction: width of a stage over the width of its bottleneck convolution.
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth of the last block, rising linearly from zero.
    """

    official_prefix: ClassVar[str] = "transformer1."
    init_classifier = staticmethod(init_linear)
    pools: ClassVar[tuple[str, ...]] = ("token", "avg")
    num_prefix_tokens: int = 1
    prefix_in_channels: ClassVar[bool] = True  # of what `forward_features` returns

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        embed_dim: int = 96,
        depths: Sequence[int] = (2, 2, 8, 2),
        num_heads: Sequence[int] = (2, 2, 4, 8),
        mlp_ratios: float | Sequence[float] = (2.0, 2.0, 2.0, 1.0),
        synergistic: bool | Sequence[bool] = (True, True, False, False),
        candidates: str | Sequence[str] = CANDIDATES,
        nomination: Nomination = "hard",
        temperature: float = 1.0,
        window_size: int | Sequence[int] = 7,
        dct_sizes: int | Sequence[int] = (8, 4, 2, 1),
        cnn_reduction: int | Sequence[int] = 2,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        dims = [embed_dim * 2**i for i in range(STAGES)]
        depths, num_heads = per_stage("depths", depths), per_stage("num_heads", num_heads)
        ratios = per_stage("mlp_ratios", mlp_ratios)
        synergy = per_stage("synergistic", synergistic)
        windows, blocks = per_stage("window_size", window_size), per_stage("dct_sizes", dct_sizes)
        reductions = per_stage("cnn_reduction", cnn_reduction)
        chosen = choose_candidates(candidates)
        # Without a global candidate nothing brings the image to the class token of a synergistic last stage.
        self.reads_token = not synergy[-1] or "global" in chosen
        self.stem = Stem(in_chans, embed_dim)
        self.stages = nn.ModuleList()
        for i, dim in enumerate(dims):
            last = i == STAGES - 1
            mixers = [
                Synergy(
                    dim,
                    num_heads=num_heads[i],
                    window_size=windows[i],
                    dct_size=blocks[i],
                    cnn_reduction=reductions[i],
                    candidates=chosen,
                    nomination=nomination,
                    temperature=temperature,
                    prefix=1 if last else 0,
                )
                if synergy[i]
                else GlobalMixer(dim, num_heads[i])
                for _ in range(depths[i])
            ]
            rates = [drop_path_rate * (sum(depths[:i]) + j) / max(sum(depths) - 1, 1) for j in range(depths[i])]
            stage = Stage(
                dim,
                merge=Merge(dim // 2, dim) if i else nn.Identity(),
                blocks=[Block(dim, m, mlp_ratio=ratios[i], drop_path=r) for m, r in zip(mixers, rates, strict=True)],
                grid=grid_of(img_size) if i == 2 else None,
                class_token=last,
            )
            self.stages.append(stage)
        self.feature_info = [
            {"num_chs": dim, "reduction": 4 * 2**i, "module": f"stages.{i}"} for i, dim in enumerate(dims)
        ]
        self.width = dims[-1]
        self.norm = nn.LayerNorm(self.width)
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)
        self.apply(init_linear)

    @property
    def num_features(self) -> int:  # type: ignore[override]
        """Channels of what `forward_features` returns; without classes, width of what `forward` returns."""
        return self.width if self.num_classes == 0 and self.global_pool else 2 * self.width

    @property
    def head_hidden_size(self) -> int:
        """Width of what `forward_head(pre_logits=True)` returns."""
        return self.width

    def as_map(self, x: Any, norm: bool) -> Tensor:
        """Return a stage's output as B, C, H, W; the last one's without its class token, normalised if asked."""
        if isinstance(x, Tensor):
            return x
        tokens, grid = x
        tokens = self.norm(tokens) if norm else tokens
        return tokens[:, 1:].transpose(1, 2).unflatten(2, grid)

    def finish(self, x: Any) -> Tensor:
        """Return the last stage's normalised map, B, 2C, H, W; an earlier stage's map as it is.

        The class token has no place of its own on a map: every place carries it, in C channels after the map's own.
        """
        if isinstance(x, Tensor):
            return x
        tokens, grid = x
        tokens = self.norm(tokens)
        places = torch.cat([tokens[:, 1:], tokens[:, :1].expand(-1, tokens.shape[1] - 1, -1)], dim=2)
        return places.transpose(1, 2).unflatten(2, grid)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool what `forward_features` returns, B, 2C, H, W, and classify it.

        One place alone, B, C, 1, 1, is its own class token: so the classifier can be asked of every place.
        """
        if self.global_pool == "token":
            x = x[:, -self.width :, 0, 0]
        elif self.global_pool:
            x = x[:, : self.width].flatten(2).mean(dim=2)
        x = self.head_drop(x)
        return x if pre_logits else self.head(x)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier; zero classes makes it an identity."""
        if global_pool == "token" and not self.reads_token:
            raise ValueError(
                "global_pool='token' was given, but the synergistic last stage has no 'global' candidate, so the "
                "class token never sees the image; add 'global' or choose global_pool='avg'"
            )
        super().reset_classifier(num_classes, global_pool)

    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, window_size: int | None = None, **_: Any
    ) -> None:
        """Resample the position table for another image size and the windows' bias tables for another window."""
        for module in self.modules():
            if isinstance(module, Stage) and module.pos_embed is not None and img_size is not None:
                table = resize_grid(module.pos_embed.detach(), grid_of(img_size))
                module.pos_embed = nn.Parameter(table, requires_grad=module.pos_embed.requires_grad)
            elif isinstance(module, WindowAttention) and window_size is not None:
                module.set_window_size(window_size)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return timm's map from parameter names to layers, for layer-wise learning rates."""
        if coarse:
            return {"stem": r"^stem", "blocks": r"^stages\.(\d+)"}
        blocks = [
            (r"^stages\.(\d+)\.(?:merge|pos_embed|cls_token)", (0,)),
            (r"^stages\.(\d+)\.blocks\.(\d+)", None),
            (r"^norm", (99999,)),
        ]
        return {"stem": r"^stem", "blocks": blocks}

    def convert(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename a published state dict to ours and fit position and bias tables to this model's grid and windows."""
        ours = self.state_dict()
        converted = {}
        for key, value in state_dict.items():
            if key.endswith(NOMMER_CONSTANTS):
                continue
            key = rename(key, NOMMER_NAMES)
            if key.endswith(("perceive.weight", "restore.weight")) and value.ndim == 4:
                value = pack_frequencies(value, restore=key.endswith("restore.weight"))
            elif key.endswith("pos_embed") and key in ours and value.ndim == 4:
                value = resize_grid(value, tuple(ours[key].shape[1:3]))
            elif key.endswith("relative_position_bias_table") and key in ours:
                value = resize_bias_table(value, ours[key].shape[0])
            converted[key] = value
        return converted


class Stem(nn.Module):
    """Patch embedding (table 3): patches of 4 x 4; a rest at the bottom or right is completed with zeros."""

    def __init__(self, in_chans: int, dim: int) -> None:
        super().__init__()
        self.conv = PatchConv(in_chans, dim, patch=4, bias=False)
        self.norm = nn.BatchNorm2d(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map B, in_chans, H, W to B, C, ceil(H / 4), ceil(W / 4)."""
        H, W = x.shape[2:]
        if not (isinstance(H, int) and isinstance(W, int) and H % 4 == 0 and W % 4 == 0):
            x = F.pad(x, (0, (W + 3) // 4 * 4 - W, 0, (H + 3) // 4 * 4 - H))
        return F.relu(self.norm(self.conv(x)))


class Merge(nn.Module):
    """Reduction module (table 3): convolution, max pooling, norm; the last row of an odd map is pooled by itself."""

    def __init__(self, in_dim: int, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_dim, dim, 3, padding=1)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map B, in_dim, H, W to B, dim, ceil(H / 2), ceil(W / 2)."""
        x = extend(self.conv(x).permute(0, 2, 3, 1), 2)  # B, H, W, C
        x = F.max_pool2d(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
        return self.norm(x).permute(0, 3, 1, 2)


class Stage(nn.Module):
    """Merge, position table and class token where the network has them, and blocks.

    Returns a map B, C, H, W; a stage with a class token returns its tokens, B, 1 + L, C, and their grid.
    """

    def __init__(
        self, dim: int, *, merge: nn.Module, blocks: list["Block"], grid: tuple[int, int] | None, class_token: bool
    ) -> None:
        super().__init__()
        self.merge = merge
        self.pos_embed = nn.Parameter(torch.randn(1, *grid, dim)) if grid else None
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim)) if class_token else None
        self.blocks = nn.ModuleList(blocks)
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, tuple[int, int]]:
        """Run the stage on a map, B, C, H, W."""
        x = self.merge(x).permute(0, 2, 3, 1)  # B, H, W, C
        grid = (x.shape[1], x.shape[2])
        x = x.flatten(1, 2)
        if self.pos_embed is not None:
            x = x + resize_grid(self.pos_embed, grid).flatten(1, 2)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        x = run_blocks(self.blocks, x, grid, recompute=self.grad_checkpointing)
        return x.transpose(1, 2).unflatten(2, grid) if self.cls_token is None else (x, grid)


class Block(nn.Module):
    """S-NomMer or G-NomMer block: a mixer and FFN, each behind a norm and inside a residual connection.

    Algorithm 1 shows neither the norms nor a residual connection around the mixer; this is the published code's form.
    """

    def __init__(self, dim: int, mixer: nn.Module, *, mlp_ratio: float, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.mixer = mixer
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Map tokens B, N, C, the last H * W of them a map in row-major order, to tokens."""
        x = x + self.drop_path(self.mixer(self.norm1(x), grid))
        return x + self.drop_path(self.mlp(self.norm2(x)))  # Algorithm 1, line 16


class GlobalMixer(nn.Module):
    """The mixer of a G-NomMer block: G-MHSA, attention between all tokens."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.attn = plain_attention(dim, num_heads)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:  # noqa: ARG002
        """Mix tokens, B, N, C."""
        return self.attn(x)


def choose_candidates(names: str | Sequence[str]) -> tuple[str, ...]:
    """Check the names of candidates and put them into the order of the nominator's scores."""
    given = [name.lower() for name in ([names] if isinstance(names, str) else names)]
    if not given or len(set(given)) < len(given) or not set(given) <= set(CANDIDATES):
        raise ValueError(f"candidates={names!r} were given; name each of {', '.join(CANDIDATES)} at most once")
    return tuple(name for name in CANDIDATES if name in given)


def grid_of(img_size: int | tuple[int, int]) -> tuple[int, int]:
    """Return the third stage's map size for an image size."""
    height, width = to_2tuple(img_size)
    return -(-height // 16), -(-width // 16)


default_cfgs = generate_default_cfgs(
    {
        f"nommer_{size}": default_cfg(stride=32, first_conv="stem.conv", classifier="head")
        for size in ("tiny", "small", "base")
    }
)


@register_model
def nommer_tiny(pretrained: bool = False, **kwargs: Any) -> NomMer:
    """NomMer-T: width 96, 14 blocks, bottlenecks of half the width."""
    return build(NomMer, "nommer_tiny", pretrained, kwargs, drop_path_rate=0.1)


@register_model
def nommer_small(pretrained: bool = False, **kwargs: Any) -> NomMer:
    """NomMer-S: width 96, 32 blocks, bottlenecks of a quarter of the width."""
    return build(NomMer, "nommer_small", pretrained, kwargs, depths=(6, 6, 16, 4), cnn_reduction=4, drop_path_rate=0.3)


@register_model
def nommer_base(pretrained: bool = False, **kwargs: Any) -> NomMer:
    """NomMer-B: width 128, 32 blocks, bottlenecks of a quarter of the width."""
    size = {"embed_dim": 128, "depths": (6, 6, 16, 4), "cnn_reduction": 4, "drop_path_rate": 0.5}
    return build(NomMer, "nommer_base", pretrained, kwargs, **size)
