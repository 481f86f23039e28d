"""Four maps of a backbone, each of half the side of the one before, whatever the backbone is."""

import math
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.layers import Conv2dSame, LayerNorm2d
from torch import Tensor, nn

from ...models._constructors import constructor_options
from ...settings import ConfigError

FINEST = 4  # pixels from cell to cell in the first map of a columnar host
MAPS = 4
SAFE = 64  # pixels whose multiples the strides and windows of hosts of one size divide


class FeaturePyramid(nn.Module):
    """What brings a backbone's maps to four scales.

    A host of stages gives the last map of each of its last four scales; the coarsest is pooled for those it lacks. A
    columnar host gives the tokens after each quarter of its blocks, brought to a quarter of the image's side, an
    eighth, and so on by transposed convolutions and pooling, as Context Broadcasting has it (XCiT's protocol).

    Args:
        backbone: of timm's contract; what the maps do not need is taken off it.
        norm: normalise the maps, for heads that do not.
    """

    def __init__(self, backbone: nn.Module, *, norm: bool = False) -> None:
        super().__init__()
        host: Any = backbone
        name = type(backbone).__name__
        if not hasattr(host, "forward_intermediates") or not hasattr(host, "feature_info"):
            raise ConfigError(f"{name} gives no maps of features (timm's forward_intermediates); choose another model")
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
                raise ConfigError(f"the maps of {name} do not become coarser one after another: {strides}")
        self.feature_info = [dict(info[index]) for index in self.indices]
        widths = [int(entry["num_chs"]) for entry in self.feature_info]
        self.resample = nn.ModuleList(_resample(width, scale) for width, scale in zip(widths, scales, strict=True))
        self.missing = MAPS - len(widths)
        self.channels = widths + widths[-1:] * self.missing
        self.strides = [stride / scale for stride, scale in zip(reached, scales, strict=True)]
        self.strides += [self.strides[-1] * 2 ** (number + 1) for number in range(self.missing)]
        self.norms = nn.ModuleList(LayerNorm2d(width) if norm else nn.Identity() for width in self.channels)
        self.multiple = _common(max(reached), self.strides[-1])
        settle_padding(backbone)
        if hasattr(host, "prune_intermediate_layers"):
            try:
                host.prune_intermediate_layers(self.indices, prune_norm=True, prune_head=True)
            except AssertionError:  # EfficientViT's head refuses to be taken off
                host.prune_intermediate_layers(self.indices, prune_head=False)

    def forward(self, backbone: nn.Module, x: Tensor) -> list[Tensor]:
        """Return four maps, B, C, H, W, that a backbone has of images whose sides `multiple` divides."""
        host: Any = backbone
        found = host.forward_intermediates(x, indices=self.indices, output_fmt="NCHW", intermediates_only=True)
        maps = [resample(one) for resample, one in zip(self.resample, found, strict=True)]
        for _ in range(self.missing):
            maps.append(F.max_pool2d(maps[-1], 2))
        return [norm(one) for norm, one in zip(self.norms, maps, strict=True)]


class OnPyramid(nn.Module):
    """What reads a backbone's maps by a pyramid, such as a segmenter or a detector: what timm's ways ask of it."""

    backbone: nn.Module
    neck: FeaturePyramid

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """The backbone's maps, as plug-ins ask for them: which modules feed the pyramid, and how wide they are."""
        return [
            {**entry, "module": f"backbone.{entry['module']}", "reduction": max(round(stride), 1)}
            for entry, stride in zip(self.neck.feature_info, self.neck.strides, strict=False)
        ]

    def no_weight_decay(self) -> set[str]:
        """Return names of parameters that weight decay would harm."""
        backbone: Any = self.backbone
        spare = backbone.no_weight_decay() if hasattr(backbone, "no_weight_decay") else set()
        return {f"backbone.{name}" for name in spare}


class EvenConv2dSame(Conv2dSame):
    """TensorFlow's "same" padding of a convolution whose stride divides the sides: a number, not a function of them.

    Sides are multiples of the coarsest stride here. An exported graph need not reason about them then.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution."""
        pads = []
        for axis in (1, 0):
            whole = max(self.dilation[axis] * (self.kernel_size[axis] - 1) + 1 - self.stride[axis], 0)
            pads += [whole // 2, whole - whole // 2]
        return F.conv2d(F.pad(x, pads), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def init_convs(module: nn.Module) -> None:
    """Draw a head's convolutions as suits networks with ReLU."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def settle_padding(backbone: nn.Module) -> None:
    """Let "same" convolutions rely on sides that their strides divide."""
    for module in backbone.modules():
        if type(module) is Conv2dSame:
            module.__class__ = EvenConv2dSame


def any_size_options(name: str) -> dict[str, Any]:
    """Return arguments that let a model of timm take images of any size, where its constructor has some."""
    known = constructor_options(name)
    if "dynamic_img_size" in known:
        return {"dynamic_img_size": True}
    return {"strict_img_size": False} if "strict_img_size" in known else {}


def fixed_side(name: str, side: int) -> int | None:
    """Return the one side that a model of timm takes when it is built for images of another; None if it takes any."""
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    if config is None or not config.fixed_input_size or any_size_options(name):
        return None
    return round_up(side, SAFE) if "img_size" in constructor_options(name) else int(config.input_size[-1])


def round_up(side: int, multiple: int) -> int:
    """Return the least multiple of a number that is no smaller than a side."""
    return (side + multiple - 1) // multiple * multiple


def pad_to(images: Tensor, multiple: int) -> Tensor:
    """Return images whose sides a number divides, the last row and column repeated; no branch a graph would fix."""
    height, width = images.shape[-2:]
    if not torch.compiler.is_exporting() and height % multiple == 0 and width % multiple == 0:
        return images
    rows = torch.arange(round_up(height, multiple), device=images.device).clamp(max=height - 1)
    columns = torch.arange(round_up(width, multiple), device=images.device).clamp(max=width - 1)
    return images.index_select(2, rows).index_select(3, columns)


def _quarters(depth: int) -> list[int]:
    """Return the last block of each quarter of a column."""
    if depth < MAPS:
        raise ConfigError(f"a column of {depth} blocks gives no four maps; choose a deeper model")
    return [round(depth * part / MAPS) - 1 for part in range(1, MAPS + 1)]


def _column_scales(stride: int) -> list[float]:
    """Return by how much each map of a column is enlarged: 4, 2, 1 and a half for patches of 16 pixels."""
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
    """Return the side that both the host's cells and the coarsest map's divide."""
    found = round(max(stride, coarsest))
    return found if found % round(stride) == 0 else round(stride) * 2**MAPS
