"""Segmentation models: a backbone with decoders of segmentation-models-pytorch and an auxiliary FCN."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...settings import ConfigError
from ...settings.registry import Registry, parse_options
from .pyramid import FeaturePyramid, OnPyramid, init_convs, pad_to, round_up

EXTRA = "segmentation-models-pytorch: pip install 'saccade[dense]'"
HEADS: Registry[Callable[..., "Head"]] = Registry("head", group="saccade.heads", home="saccade.tasks.segmentation")
register_head = HEADS.register


@dataclass(frozen=True)
class Head:
    """Parts of a segmentation head."""

    decoder: nn.Module  # maps four maps, finest first, to one, B, width, H, W
    width: int  # channels of that map
    kernel: int = 1  # kernel size of the classifier
    dropout: float = 0.0  # before the classifier
    aux: int = 0  # channels of the auxiliary FCN on the third map; 0 for none
    cells: int = 1  # required divisor of the coarsest map's sides


class Answers(NamedTuple):
    """Outputs of a segmenter in training: logits, B, K, H, W, and those of the auxiliary FCN."""

    logits: Tensor
    aux: Tensor


class Segmenter(OnPyramid):
    """A segmentation model of backbone, feature pyramid and head, for images of any size.

    Args:
        backbone: a backbone with timm's interface.
        head: head as in `--set model.head`: "upernet", "fpn:width=128", ...
        num_classes: number of classes.
        side: the backbone's fixed image size, to which images are resized; None: any size.
    """

    def __init__(self, backbone: nn.Module, head: str, *, num_classes: int, side: int | None = None) -> None:
        super().__init__()
        name, options = parse_options(head, HEADS, given_here=("channels",))
        pyramid = FeaturePyramid(backbone, norm=name not in UNNORMED)
        made = HEADS.find(name)(channels=tuple(pyramid.channels), **options)
        self.pretrained_cfg = getattr(backbone, "pretrained_cfg", None) or {}
        self.default_cfg = {
            "classifier": ("decoder", "classifier", "auxiliary")
        }  # parameters that are new for other classes
        self.class_layers = ("classifier.1", "auxiliary.4")  # layers with one row per class
        self.num_classes, self.num_features, self.side = num_classes, pyramid.channels[-1], side
        self.multiple = pyramid.multiple * made.cells
        self.backbone, self.neck = backbone, pyramid
        self.decoder = made.decoder
        self.classifier = nn.Sequential(
            nn.Dropout2d(made.dropout), nn.Conv2d(made.width, num_classes, made.kernel, padding=made.kernel // 2)
        )
        self.auxiliary: nn.Sequential | None = (
            fcn_head(pyramid.channels[2], made.aux, num_classes) if made.aux else None
        )
        for part in (self.decoder, self.classifier, self.auxiliary, self.neck.resample):
            if part is not None:
                part.apply(init_convs)
        for last in (self.classifier, self.auxiliary):
            if last is not None:
                weight: Any = last[-1].weight
                nn.init.normal_(weight, std=0.01)  # nearly uniform predictions at first

    def forward(self, x: Tensor) -> Tensor | Answers:
        """Return logits, B, num_classes, H, W, of images B, C, H, W; in training with those of the auxiliary FCN."""
        maps = self.maps(x)
        logits = self._enlarge(self.classifier(self.decoder(list(maps))), x)
        if self.auxiliary is None or not self.training:
            return logits
        return Answers(logits, self._enlarge(self.auxiliary(maps[2]), x))

    def maps(self, x: Tensor) -> list[Tensor]:
        """Return the head's four input maps."""
        if self.side is not None:
            x = F.interpolate(x, (self.side, self.side), mode="bilinear", align_corners=False)
        return self.neck(self.backbone, pad_to(x, self.multiple))

    def _enlarge(self, logits: Tensor, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        if self.side is not None:
            return F.interpolate(logits, (height, width), mode="bilinear", align_corners=False)
        whole = [round_up(side, self.multiple) for side in (height, width)]
        return F.interpolate(logits, whole, mode="bilinear", align_corners=False)[..., :height, :width]

    def get_classifier(self) -> nn.Module:
        """Return the classifier."""
        return self.classifier


UNNORMED = ("upernet",)  # heads that normalise their inputs


def fcn_head(channels: int, width: int, num_classes: int) -> nn.Sequential:
    """Return the auxiliary FCN: a 3 x 3 convolution and a classifier."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.1),
        nn.Conv2d(width, num_classes, 1),
    )


class FromFinest(nn.Module):
    """Adapter of decoders of segmentation-models-pytorch, whose inputs start at the image's size.

    Args:
        decoder: the decoder, which takes a list of maps.
        skips: whether it takes maps of the image's size and half of it, which have no channels here.
    """

    def __init__(self, decoder: nn.Module, *, skips: bool = False) -> None:
        super().__init__()
        self.decoder, self.skips = decoder, skips

    def forward(self, maps: list[Tensor]) -> Tensor:
        """Return the decoder's output."""
        first = maps[0]
        finer = [first, first]  # ignored by the decoder
        if self.skips:
            batch, _, height, width = first.shape
            finer = [first.new_empty(batch, 0, height * by, width * by) for by in (4, 2)]
        return self.decoder([*finer, *maps])


class AveragePool(nn.Module):
    """Adaptive average pooling as two matrix products, which can be exported for any size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Return B, C, size, size."""
        rows, columns = (self._shares(side, x) for side in x.shape[-2:])
        return torch.matmul(torch.matmul(rows, x), columns.mT)

    def _shares(self, side: int, like: Tensor) -> Tensor:
        cell = torch.arange(self.size, device=like.device)[:, None]
        begin, end = cell * side // self.size, -((-(cell + 1) * side) // self.size)
        place = torch.arange(side, device=like.device)
        inside = ((place >= begin) & (place < end)).to(like.dtype)
        return inside / (end - begin).to(like.dtype)


def _smp(name: str, kind: str) -> Any:
    """Import a decoder's class."""
    try:
        module = import_module(f"segmentation_models_pytorch.decoders.{name}.decoder")
    except ImportError as error:
        raise ImportError(f"segmentation heads need {EXTRA} ({error})") from error
    return getattr(module, kind)


def _wide(channels: Sequence[int], *, empty: bool = False) -> list[int]:
    return [3, 0 if empty else channels[0], *channels]


@register_head("upernet")
def upernet(channels: Sequence[int], width: int = 256, dropout: float = 0.1, aux: int = 256) -> Head:
    """UPerNet: pyramid pooling of the coarsest map, a top-down pyramid, and fusion of all scales."""
    decoder = _smp("upernet", "UPerNetDecoder")(_wide(channels), 5, decoder_channels=width)
    for block in decoder.psp.blocks:
        block[0] = AveragePool(block[0].output_size)
    return Head(FromFinest(decoder), width, dropout=dropout, aux=aux)


@register_head("fpn")
def fpn(
    channels: Sequence[int],
    width: int = 256,
    inner: int = 128,
    smooth: bool = False,
    dropout: float = 0.1,
    aux: int = 0,
) -> Head:
    """Semantic FPN: a top-down pyramid whose scales are upsampled to the finest and added.

    Args:
        inner: channels of the added maps.
        smooth: apply a 3 x 3 convolution after each sum of the pyramid, as in the papers.
        aux: channels of the auxiliary FCN on the third map; 0 for none.
    """
    if inner % 32:
        raise ConfigError(f"fpn:inner={inner} was given; its norm works in 32 groups, so give a multiple of 32")
    decoder = _smp("fpn", "FPNDecoder")(
        _wide(channels), 5, pyramid_channels=width, segmentation_channels=inner, dropout=0
    )
    for module in decoder.modules():
        if isinstance(module, nn.GroupNorm):  # a group of one value has no variance
            module.num_groups = min(module.num_groups, module.num_channels // 2)
    if smooth:
        for level, block in enumerate(decoder.seg_blocks):
            decoder.seg_blocks[level] = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), block)
    return Head(FromFinest(decoder), inner, dropout=dropout, aux=aux)


@register_head("unet")
def unet(channels: Sequence[int], width: int = 16, aux: int = 0) -> Head:
    """U-Net: skip connections up to the image's size."""
    return _skipping("unet", "UnetDecoder", channels, width, aux)


@register_head("unetplusplus")
def unetplusplus(channels: Sequence[int], width: int = 16, aux: int = 0) -> Head:
    """U-Net++: nested skip connections."""
    return _skipping("unetplusplus", "UnetPlusPlusDecoder", channels, width, aux)


@register_head("manet")
def manet(channels: Sequence[int], width: int = 16, aux: int = 0) -> Head:
    """MA-Net: a U-Net with spatial and channel attention."""
    return _skipping("manet", "MAnetDecoder", channels, width, aux)


@register_head("pan")
def pan(channels: Sequence[int], width: int = 32, aux: int = 0) -> Head:
    """Pyramid attention network."""
    decoder = FromFinest(_smp("pan", "PANDecoder")(_wide(channels), 5, width))
    return Head(decoder, width, kernel=3, aux=aux, cells=8)  # it downsamples the coarsest map by 8


@register_head("segformer")
def segformer(channels: Sequence[int], width: int = 256, dropout: float = 0.1, aux: int = 0) -> Head:
    """SegFormer's all-MLP head."""
    decoder = FromFinest(_smp("segformer", "SegformerDecoder")(_wide(channels), 5, width))
    return Head(decoder, width, dropout=dropout, aux=aux)


def _skipping(name: str, kind: str, channels: Sequence[int], width: int, aux: int) -> Head:
    """Return a U-Net-like head, up to the image's size."""
    steps = tuple(width * 2**power for power in (4, 3, 2, 1, 0))
    decoder = _smp(name, kind)(_wide(channels, empty=True), steps, 5)
    return Head(FromFinest(decoder, skips=True), width, kernel=3, aux=aux)
