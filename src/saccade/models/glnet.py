"""GLNet: a pyramid of GLMix and attention blocks."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from ..layers.downsample import overlapping_downsample, overlapping_stem, patch_downsample, patch_stem
from ..layers.glmix import Block, GLMix, Local, MapAttention, Mixer
from ..layers.init import init_linear
from ..layers.slots import Clustering, Slots, SlotScale
from ..layers.token_label import TokenBox, TokenLabelOutput, place_box, sample_box, swap_box
from ._backbone import Pyramid, run_blocks, to_map
from ._builder import OPTIONS_ABOVE_SMALL, build, check_stages, default_cfg
from ._published import GLNET_NAMES, GLNET_OVERLAPPING, GLNET_PATCHES, GLNET_POINTWISE, rename


class GLNet(Pyramid):
    """Four stages of strides 4, 8, 16 and 32.

    With `token_label` a second classifier reads every token of the last map. The logits are then the class logits plus
    half the largest logit of any token, in training as in evaluation, so that ordinary training fits what is evaluated
    and leaves no parameter without gradient; `forward_token_label` returns the parts that token labelling trains on.

    Args:
        img_size: accepted as by every model and not needed; any size works.
        in_chans: channels of the images.
        num_classes: logits; zero leaves the classifiers out.
        global_pool: "avg", "max", or "" for the map itself (without a classifier).
        dims: width of each stage.
        depths: blocks of each stage.
        num_heads: heads of each stage; heads of width 32 if not given.
        pattern: blocks of each stage in turn, "G" for GLMix and "A" for attention: "GA" alternates, GLMix first.
        mlp_ratio: hidden width of the feed-forward part, in stage widths.
        num_slots: slots of a GLMix block; a square number if they are pooled.
        slots: "pool" averages the initial slots from the map, "learned" holds them as parameters.
        slot_scale: factor of the similarity, "learned" or "constant".
        clustering: "soft" or "kmeans".
        kmeans_iterations: updates of the centres in "kmeans".
        mixer: how a GLMix block joins its branches: "parallel", "local_global", "global_local", "local", "global".
        local: local branch, "conv" or "window".
        kernel_size: side of the local convolution.
        window_size: side of the local window.
        pos_conv: add a depthwise 3x3 convolution before every block, as position encoding.
        conv_mlp: add a depthwise 3x3 convolution inside the feed-forward part.
        layer_scale: initial factor of every branch; None leaves it out.
        overlap: embed patches by overlapping 3x3 convolutions, else by patches that tile the map.
        patch: side of the stem's patches in pixels: 4, or less for small images.
        token_label: add the classifier of tokens.
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth of the last block, growing from zero at the first.
    """

    official_prefix: ClassVar[str] = "downsample_layers."
    init_classifier = staticmethod(init_linear)
    classifier: ClassVar[tuple[str, ...]] = ("head", "aux_head")
    pools: ClassVar[tuple[str, ...]] = ("avg", "max")
    aux_head: nn.Module | None

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,  # noqa: ARG002
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        dims: Sequence[int] = (64, 128, 256, 512),
        depths: Sequence[int] = (4, 4, 18, 4),
        num_heads: Sequence[int] | None = None,
        pattern: Sequence[str] = ("G", "G", "GA", "A"),
        mlp_ratio: float = 3.0,
        num_slots: int = 64,
        slots: Slots = "pool",
        slot_scale: SlotScale = "learned",
        clustering: Clustering = "soft",
        kmeans_iterations: int = 10,
        mixer: Mixer = "parallel",
        local: Local = "conv",
        kernel_size: int = 5,
        window_size: int = 7,
        pos_conv: bool = True,
        conv_mlp: bool = True,
        layer_scale: float | None = None,
        overlap: bool = True,
        patch: int = 4,
        token_label: bool = False,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        heads = _heads(dims) if num_heads is None else tuple(num_heads)
        check_stages(dims=dims, depths=depths, num_heads=heads, pattern=pattern)
        if any(not letters or set(letters) - set("GA") for letters in pattern):
            raise ValueError(
                f"pattern={pattern} was given; the pattern of a stage consists of 'G' (GLMix) and 'A' (attention)"
            )
        self.in_chans = in_chans
        self.num_features = dims[-1]
        self.overlap = overlap
        self.token_label = token_label
        mixers: dict[str, Callable[..., nn.Module]] = {
            "A": MapAttention,
            "G": partial(
                GLMix,
                mixer=mixer,
                local=local,
                kernel_size=kernel_size,
                window_size=window_size,
                num_slots=num_slots,
                slots=slots,
                slot_scale=slot_scale,
                clustering=clustering,
                kmeans_iterations=kmeans_iterations,
            ),
        }
        self.stem = (overlapping_stem if overlap else patch_stem)(in_chans, dims[0], patch=patch)
        rates = torch.linspace(0, drop_path_rate, sum(depths), device="cpu").tolist()
        downsample = overlapping_downsample if overlap else patch_downsample
        self.stages = nn.ModuleList()
        for index, depth in enumerate(depths):
            dim, first = dims[index], sum(depths[:index])
            blocks = [
                Block(
                    dim,
                    mixers[pattern[index][i % len(pattern[index])]](dim, num_heads=heads[index]),
                    mlp_ratio=mlp_ratio,
                    pos_conv=pos_conv,
                    conv_mlp=conv_mlp,
                    layer_scale=layer_scale,
                    drop_path=rates[first + i],
                )
                for i in range(depth)
            ]
            self.stages.append(Stage(downsample(dims[index - 1], dim) if index else nn.Identity(), blocks))
        self.norm = nn.BatchNorm2d(self.num_features)
        self.head_drop = nn.Dropout(drop_rate)
        self.feature_info = [
            {"num_chs": dim, "reduction": patch * 2**i, "module": f"stages.{i}"} for i, dim in enumerate(dims)
        ]
        self.reset_classifier(num_classes, global_pool)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool the last map, B, C, H, W, and classify it, with its tokens if there is a classifier for them."""
        pooled = self.pool(x)
        if pre_logits:
            return pooled
        logits = self.head(pooled)
        return logits if self.aux_head is None else logits + 0.5 * self.classify_tokens(x).amax((2, 3))

    def forward_token_label(
        self,
        x: Tensor,
        *,
        box: TokenBox | Tensor | None = None,
        lam: float | None = None,
        generator: torch.Generator | None = None,
    ) -> TokenLabelOutput:
        """Return class logits and token logits of images mixed by MixToken.

        After the stem a box of every image is swapped with that of the batch in reverse order; the token logits are
        swapped back, so that each token's is its own image's.

        Args:
            x: images, B, in_chans, H, W.
            box: the box on the last map's grid, its edges numbers or tensors, or what `draw_place` returned; drawn if
                not given, an empty one mixes nothing.
            lam: share that a drawn box keeps; drawn if not given.
            generator: source of randomness of the drawing, on the CPU.

        Returns:
            Class logits, B, num_classes, token logits, B, L, num_classes, and the box.
        """
        if self.aux_head is None:
            raise ValueError("this model has no token classifier; build it with token_label=True and num_classes > 0")
        x = self.stem(x)
        if box is None:
            box = sample_box(self._last_grid(x), lam=lam, generator=generator)
        elif isinstance(box, Tensor):
            box = place_box(box, self._last_grid(x))
        x = swap_box(x, box.scaled(self._shrinkage()))
        for stage in self.stages:
            x = stage(x)
        x = self.finish(x)
        tokens = swap_box(self.classify_tokens(x), box)
        return TokenLabelOutput(self.head(self.pool(x)), tokens.flatten(2).mT, box)

    def _last_grid(self, x: Tensor) -> tuple[int, int]:
        """Return the last map's height and width for the stem's output."""
        factor = self._shrinkage()
        height, width = (-(-side // factor) if self.overlap else max(side // factor, 1) for side in x.shape[2:])
        return height, width

    def _shrinkage(self) -> int:
        """Return how many times smaller than the stem's the last map is."""
        return int(2 ** (len(self.stages) - 1))

    def pool(self, x: Tensor) -> Tensor:
        """Return what the classifier reads, B, C."""
        if self.global_pool:
            x = x.mean((2, 3)) if self.global_pool == "avg" else x.amax((2, 3))
        return self.head_drop(x)

    def classify_tokens(self, x: Tensor) -> Tensor:
        """Return every token's logits as a map, B, num_classes, H, W."""
        assert self.aux_head is not None
        return self.aux_head(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifiers; zero classes leaves none."""
        super().reset_classifier(num_classes, global_pool)
        self.aux_head = self.new_classifier() if num_classes > 0 and self.token_label else None

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return timm's map from parameter names to layers, for layer-wise learning rates."""
        fine = [
            (r"^stages\.(\d+)\.downsample", (0,)),
            (r"^stages\.(\d+)\.blocks\.(\d+)", None),
            (r"^norm", (99999,)),
        ]
        return {"stem": r"^stem", "blocks": r"^stages\.(\d+)" if coarse else fine}

    def convert(self, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename a published state dict to ours."""
        if not self.is_official(state_dict):
            return dict(state_dict)
        renames = [*GLNET_NAMES, *(GLNET_OVERLAPPING if self.overlap else GLNET_PATCHES)]
        if self.token_label:
            renames.append((r"^tklb_aux_head\.", "aux_head."))
        converted = {}
        for key, value in state_dict.items():
            name = rename(key, renames)
            if name.endswith(".gamma"):
                value = value.flatten()  # 1, C, 1, 1
            elif name.endswith(GLNET_POINTWISE):
                value = value.flatten(1)  # a 1x1 convolution is a linear layer
            converted[name] = value
        return converted


class Stage(nn.Module):
    """A smaller map, then blocks."""

    def __init__(self, downsample: nn.Module, blocks: list[Block]) -> None:
        super().__init__()
        self.grad_checkpointing = False
        self.downsample = downsample
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Return B, C, H, W."""
        x = self.downsample(x)
        grid = (x.shape[2], x.shape[3])
        x = x.permute(0, 2, 3, 1).contiguous().flatten(1, 2)  # B, H * W, C for the blocks
        return to_map(run_blocks(self.blocks, x, grid, recompute=self.grad_checkpointing), grid)


def _heads(dims: Sequence[int]) -> tuple[int, ...]:
    if any(dim % 32 for dim in dims):
        raise ValueError(f"dims={tuple(dims)} are not all multiples of 32, the width of a head; also give num_heads")
    return tuple(dim // 32 for dim in dims)


# Ours, for images of 24 to 64 pixels at their own size; not one of the paper's.
NANO_LAYOUT: dict[str, Any] = {
    "dims": (64, 128, 256),
    "depths": (3, 5, 2),
    "pattern": ("G", "GA", "A"),
    "num_slots": 16,
    "patch": 2,
}
OPTIONS_ABOVE_SMALL["glnet_nano"] = {"patch": 4}
SWIN_TINY_LAYOUT: dict[str, Any] = {
    "dims": (96, 192, 384, 768),
    "depths": (2, 2, 6, 2),
    "pattern": ("G", "G", "G", "A"),
    "mlp_ratio": 4.0,
    "pos_conv": False,
    "conv_mlp": False,
    "overlap": False,
}


def _cfg(first_conv: str, **overrides: Any) -> dict[str, Any]:
    return default_cfg(**{"stride": 32, "first_conv": first_conv, "license": "mit", **overrides})


default_cfgs = generate_default_cfgs(
    {
        "glnet_nano": _cfg("stem.conv1", img_size=32, stride=8, crop_pct=1.0),
        "glnet_stl": _cfg("stem.conv"),
        "glnet_stl_paramslot": _cfg("stem.conv"),
        "glnet_4g": _cfg("stem.conv1"),
        "glnet_9g": _cfg("stem.conv1"),
        "glnet_16g": _cfg("stem.conv1"),
        "glnet_4g_tl": _cfg("stem.conv1", classifier=("head", "aux_head"), crop_pct=0.96),
        "glnet_9g_tl": _cfg("stem.conv1", classifier=("head", "aux_head"), crop_pct=0.96),
    }
)


@register_model
def glnet_nano(pretrained: bool = False, **kwargs: Any) -> GLNet:
    """GLNet for small images: three stages from patches of two pixels; 2.8 M parameters."""
    stages = len(kwargs.get("dims", NANO_LAYOUT["dims"]))
    return build(GLNet, "glnet_nano", pretrained, kwargs, **NANO_LAYOUT, out_indices=tuple(range(stages)))


@register_model
def glnet_stl(pretrained: bool = False, **kwargs: Any) -> GLNet:
    """GLNet-STL, in the layout of Swin-T: GLMix in three stages, attention in the last; 30.3 M parameters."""
    return build(GLNet, "glnet_stl", pretrained, kwargs, **SWIN_TINY_LAYOUT)


@register_model
def glnet_stl_paramslot(pretrained: bool = False, **kwargs: Any) -> GLNet:
    """GLNet-STL with learned initial slots; 30.5 M parameters."""
    return build(GLNet, "glnet_stl_paramslot", pretrained, kwargs, **SWIN_TINY_LAYOUT, slots="learned")


@register_model
def glnet_4g(pretrained: bool = False, **kwargs: Any) -> GLNet:
    """GLNet-4G: widths 64 to 512, 30 blocks; 27.0 M parameters."""
    return build(GLNet, "glnet_4g", pretrained, kwargs, dims=(64, 128, 256, 512))


@register_model
def glnet_9g(pretrained: bool = False, **kwargs: Any) -> GLNet:
    """GLNet-9G: widths 96 to 768, 30 blocks; 60.0 M parameters."""
    return build(GLNet, "glnet_9g", pretrained, kwargs, dims=(96, 192, 384, 768))


@register_model
def glnet_16g(pretrained: bool = False, **kwargs: Any) -> GLNet:
    """GLNet-16G: widths 128 to 1024, 30 blocks with layer scale; 106.1 M parameters."""
    return build(GLNet, "glnet_16g", pretrained, kwargs, dims=(128, 256, 512, 1024), layer_scale=1e-4)


@register_model
def glnet_4g_tl(pretrained: bool = False, **kwargs: Any) -> GLNet:
    """GLNet-4G for token labelling (published as glnet_4g_tklb); 27.5 M parameters."""
    return build(GLNet, "glnet_4g_tl", pretrained, kwargs, dims=(64, 128, 256, 512), token_label=True)


@register_model
def glnet_9g_tl(pretrained: bool = False, **kwargs: Any) -> GLNet:
    """GLNet-9G for token labelling (published as glnet_9g_tklb); 60.8 M parameters."""
    return build(GLNet, "glnet_9g_tl", pretrained, kwargs, dims=(96, 192, 384, 768), token_label=True)
