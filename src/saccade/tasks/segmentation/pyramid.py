"""Feature pyramids of any backbone: four maps, each of half the side of the one before."""

import math
import re
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.layers import Conv2dSame, LayerNorm2d
from torch import Tensor, nn

from ...models._constructors import constructor_options
from ...settings import ConfigError

FINEST = 4  # stride of the first map of a columnar backbone
MAPS = 4
SAFE = 64  # multiple that strides and windows of fixed-size backbones divide


class FeaturePyramid(nn.Module):
    """Converts a backbone's maps to four scales.

    Hierarchical backbones provide the last map of each of their last four scales; missing coarser ones are pooled.
    Columnar backbones provide the tokens after each quarter of their blocks, resized to strides 4, 8, 16 and 32 by
    transposed convolutions and pooling, as in Context Broadcasting (XCiT's protocol).

    Args:
        backbone: a backbone with timm's interface; unneeded layers are removed.
        norm: normalise the maps, for heads that do not.
    """

    def __init__(self, backbone: nn.Module, *, norm: bool = False) -> None:
        super().__init__()
        host: Any = backbone
        name = type(backbone).__name__
        if not hasattr(host, "forward_intermediates") or not hasattr(host, "feature_info"):
            raise ConfigError(f"{name} has no feature maps (timm's forward_intermediates); choose another model")
        info = list(getattr(host.feature_info, "info", host.feature_info))
        strides = [int(entry["reduction"]) for entry in info]
        if len(set(strides)) == 1:
            self.indices, scales = _quarters(len(info)), _column_scales(strides[0])
            reached = [stride * 1.0 for stride in strides[:1] * MAPS]
        else:
            self.indices = _last_of_each(strides)[-MAPS:]
            reached = [float(strides[index]) for index in self.indices]
            scales = [1.0] * len(reached)
            if sorted(reached) != reached:
                raise ConfigError(f"the feature maps of {name} do not become coarser from one to the next: {strides}")
        self.feature_info = [dict(info[index]) for index in self.indices]
        widths = [int(entry["num_chs"]) for entry in self.feature_info]
        self.resample = nn.ModuleList(_resample(width, scale) for width, scale in zip(widths, scales, strict=True))
        self.missing = MAPS - len(widths)
        self.channels = widths + widths[-1:] * self.missing
        self.strides = [stride / scale for stride, scale in zip(reached, scales, strict=True)]
        self.strides += [self.strides[-1] * 2 ** (number + 1) for number in range(self.missing)]
        self.norms = nn.ModuleList(LayerNorm2d(width) if norm else nn.Identity() for width in self.channels)
        self.multiple = _common(max(reached), self.strides[-1])
        fix_same_padding(backbone)
        if hasattr(host, "prune_intermediate_layers"):
            try:
                host.prune_intermediate_layers(self.indices, prune_norm=True, prune_head=True)
            except AssertionError:  # EfficientViT's head cannot be removed
                host.prune_intermediate_layers(self.indices, prune_head=False)

    def forward(self, backbone: nn.Module, x: Tensor) -> list[Tensor]:
        """Return four maps, B, C, H, W, for images whose sides are multiples of `multiple`."""
        host: Any = backbone
        found = host.forward_intermediates(x, indices=self.indices, output_fmt="NCHW", intermediates_only=True)
        maps = [resample(one) for resample, one in zip(self.resample, found, strict=True)]
        for _ in range(self.missing):
            maps.append(F.max_pool2d(maps[-1], 2))
        return [norm(one) for norm, one in zip(self.norms, maps, strict=True)]


class OnPyramid(nn.Module):
    """Base of models with backbone and pyramid, with timm's interface."""

    backbone: nn.Module
    neck: FeaturePyramid

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """timm's feature_info of the backbone's maps, for plug-ins."""
        return [
            {**entry, "module": f"backbone.{entry['module']}", "reduction": max(round(stride), 1)}
            for entry, stride in zip(self.neck.feature_info, self.neck.strides, strict=False)
        ]

    def no_weight_decay(self) -> set[str]:
        """Return names of parameters without weight decay."""
        backbone: Any = self.backbone
        spare = backbone.no_weight_decay() if hasattr(backbone, "no_weight_decay") else set()
        return {f"backbone.{name}" for name in spare}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return timm's mapping from parameter names to layers: the backbone's; all others are the last layer."""
        backbone: Any = self.backbone
        found = {}
        for layer, patterns in backbone.group_matcher(coarse=coarse).items():
            entries = patterns if isinstance(patterns, list | tuple) else [(patterns, None)]
            found[layer] = [(_under(pattern), order) for pattern, order in entries if pattern]
        return found

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Enable gradient checkpointing of the backbone."""
        backbone: Any = self.backbone
        if not hasattr(backbone, "set_grad_checkpointing"):
            raise ConfigError(
                f"engine.grad_checkpointing was given, but {type(backbone).__name__} does not support gradient "
                "checkpointing; remove it"
            )
        backbone.set_grad_checkpointing(enable)


class EvenConv2dSame(Conv2dSame):
    """TensorFlow's "same" padding for sides divisible by the stride, where it is constant.

    Sides are multiples of the coarsest stride here; exported graphs then have static padding.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the padded convolution."""
        pads = []
        for axis in (1, 0):
            whole = max(self.dilation[axis] * (self.kernel_size[axis] - 1) + 1 - self.stride[axis], 0)
            pads += [whole // 2, whole - whole // 2]
        return F.conv2d(F.pad(x, pads), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def init_convs(module: nn.Module) -> None:
    """Initialise a head's convolutions for ReLU networks."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def fix_same_padding(backbone: nn.Module) -> None:
    """Replace "same" convolutions by ones with constant padding."""
    for module in backbone.modules():
        if type(module) is Conv2dSame:
            module.__class__ = EvenConv2dSame


def any_size_options(name: str) -> dict[str, Any]:
    """Return a timm model's constructor arguments for images of any size, if it has any."""
    known = constructor_options(name)
    if "dynamic_img_size" in known:
        return {"dynamic_img_size": True}
    return {"strict_img_size": False} if "strict_img_size" in known else {}


def fixed_side(name: str, side: int) -> int | None:
    """Return the fixed image size that a timm model is built with for a given side; None if it takes any size."""
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    if config is None or not config.fixed_input_size or any_size_options(name):
        return None
    return round_up(side, SAFE) if "img_size" in constructor_options(name) else int(config.input_size[-1])


def round_up(side: int, multiple: int) -> int:
    """Round a side up to a multiple."""
    return (side + multiple - 1) // multiple * multiple


def pad_to(images: Tensor, multiple: int) -> Tensor:
    """Pad images to a multiple by repeating the last row and column, without branches."""
    height, width = images.shape[-2:]
    if not torch.compiler.is_exporting() and height % multiple == 0 and width % multiple == 0:
        return images
    rows = torch.arange(round_up(height, multiple), device=images.device).clamp(max=height - 1)
    columns = torch.arange(round_up(width, multiple), device=images.device).clamp(max=width - 1)
    return images.index_select(2, rows).index_select(3, columns)


def _under(pattern: str) -> str:
    """Return a pattern for names of a model as one for the same names under `backbone.`."""
    inner = re.sub(r"(?<![\[\\])\^", "", pattern)
    return rf"^backbone\.(?:{inner})"


def _quarters(depth: int) -> list[int]:
    """Return the last block of each quarter."""
    if depth < MAPS:
        raise ConfigError(f"a model with {depth} blocks has no four feature maps; choose a deeper model")
    return [round(depth * part / MAPS) - 1 for part in range(1, MAPS + 1)]


def _column_scales(stride: int) -> list[float]:
    """Return the resize factors of a columnar backbone's maps: 4, 2, 1 and 0.5 for patches of 16 pixels."""
    doublings = max(round(math.log2(stride / FINEST)), 0)
    return [2.0 ** (doublings - number) for number in range(MAPS)]


def _last_of_each(strides: list[int]) -> list[int]:
    return [index for index, stride in enumerate(strides) if stride not in strides[index + 1 :]]


def _resample(width: int, scale: float) -> nn.Module:
    if scale == 1:
        return nn.Identity()
    if scale < 1:
        return nn.MaxPool2d(round(1 / scale))
    layers: list[nn.Module] = []
    while scale > 1:
        layers += [nn.BatchNorm2d(width), nn.GELU()] if layers else []
        layers.append(nn.ConvTranspose2d(width, width, 2, 2))
        scale /= 2
    return nn.Sequential(*layers)


def _common(stride: float, coarsest: float) -> int:
    """Return the common multiple of the backbone's stride and the coarsest one."""
    found = round(max(stride, coarsest))
    return found if found % round(stride) == 0 else round(stride) * 2**MAPS
