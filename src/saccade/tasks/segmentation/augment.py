"""Training crops of image and mask: random scale, flip and colour."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...data.augment import Augment
from ...data.draws import uniform
from ...data.geometry import AREA, FLIP, LEFT, RATIO, TOP, Geometry, matrices, rand_moves
from ...data.sides import MOVED
from ...data.spec import InputSpec
from ...settings import AugmentConfig

TRIES = 10  # places that are tried for a crop


class CropAugment(Augment):
    """Random crops at a random scale; grey padding is ignored in the loss.

    Args:
        config: colour augmentation, RandAugment and flips.
        crop: side of the crops.
        scale: range of the resize factor.
        uniform_scale: draw the factor uniformly, as mmsegmentation and mmdetection do; else log-uniformly.
        cat_max_ratio: largest share of a class in a crop of masks, below which one of ten crops is looked for.
        more: further arguments of `Augment`.
    """

    def __init__(
        self,
        config: AugmentConfig,
        *,
        crop: int,
        scale: Sequence[float],
        uniform_scale: bool = False,
        cat_max_ratio: float = 1.0,
        **more: Any,
    ) -> None:
        super().__init__(config, img_size=crop, **more)
        self.scale, self.uniform_scale = (float(scale[0]), float(scale[1])), uniform_scale
        self.cat_max_ratio = cat_max_ratio

    def geometry(
        self, batch: Mapping[str, Tensor], draws: Tensor, *, operations: int, later: Sequence[Tensor]
    ) -> Geometry:
        """Draw the crops of a batch."""
        config, part = self.config, self.img_size / batch["image"].shape[-1]
        crop = scaled_crops(
            draws,
            scale=self.scale,
            ratio=config.ratio,
            flip=config.flip,
            part=part,
            uniform_scale=self.uniform_scale,
        )
        if self.cat_max_ratio < 1 and "mask" in batch:
            crop = varied_crops(crop, batch["mask"], batch["key"], ratio=self.cat_max_ratio, side=self.img_size)
        moves = rand_moves(crop, draws, config, operations)
        after = reduce(torch.matmul, later) if later else None
        return Geometry(None, moves, crop, after, turned=False, resampled=True, size=(self.img_size,) * 2)


class AfterCrops(Augment):
    """Colour augmentation, RandAugment and flips of samples that were cropped when they were read."""

    def geometry(
        self, batch: Mapping[str, Tensor], draws: Tensor, *, operations: int, later: Sequence[Tensor]
    ) -> Geometry:
        """Draw flips and RandAugment's geometry."""
        height, width = batch["image"].shape[-2:]
        config = replace(self.config, crop="none")
        return Geometry.draw(draws, config, width=width, size=(height, width), operations=operations, later=later)


def scaled_crops(
    draws: Tensor,
    *,
    scale: tuple[float, float],
    ratio: Sequence[float],
    flip: float,
    part: float,
    uniform_scale: bool = False,
) -> Tensor:
    """Return matrices from crop to sample coordinates, -1 to 1; B, 3, 3.

    Args:
        scale: range of the resize factor.
        ratio: range of the aspect ratio distortion.
        part: side of a crop relative to the sample, before resizing.
        uniform_scale: draw the factor uniformly instead of log-uniformly.
    """
    low, high = scale if uniform_scale else (math.log(side) for side in scale)
    factor = low + draws[:, AREA] * (high - low)
    factor = factor if uniform_scale else torch.exp(factor)
    narrow, wide = (0.25 * math.log(side) for side in ratio)  # half the distortion of classification, over both sides
    stretch = torch.exp(narrow + draws[:, RATIO] * (wide - narrow))
    width, height = part / factor * stretch, part / factor / stretch
    right = (2 * draws[:, LEFT] - 1) * (1 - width).abs()
    down = (2 * draws[:, TOP] - 1) * (1 - height).abs()
    side = torch.where(draws[:, FLIP] < flip, -1.0, 1.0)
    return matrices(side * width, 0, right, 0, height, down)


def varied_crops(crops: Tensor, masks: Tensor, keys: Tensor, *, ratio: float, side: int) -> Tensor:
    """Return crops, B, 3, 3, moved until no class has as much as `ratio` of their pixels, at most ten times.

    Args:
        crops: from crop to sample coordinates, of which size and flip are kept.
        masks: classes of the samples, B, H, W; pixels of OUTSIDE do not count.
        keys: of the samples, B int64.
        ratio: share of the crop's pixels; measured on every fourth row and column.
        side: of the crops in pixels.
    """
    found, done = crops, torch.zeros(len(crops), dtype=torch.bool, device=crops.device)
    for number in range(TRIES):
        done = done | (largest_share(masks, found, max(side // 4, 1)) < ratio)
        places = uniform(keys[:, None], torch.arange(2, device=keys.device) + MOVED + 2 * number)
        move = (2 * places - 1) * (1 - torch.stack([crops[:, 0, 0].abs(), crops[:, 1, 1]], dim=1)).abs()
        moved = torch.cat([crops[:, :2, :2], move[:, :, None]], dim=2)
        moved = torch.cat([moved, crops[:, 2:]], dim=1)
        found = torch.where(done[:, None, None], found, moved)
    return found


def largest_share(masks: Tensor, crops: Tensor, side: int) -> Tensor:
    """Return the share of the most frequent class in crops, B, where it is above a half; else any below; 1 without any.

    A class of more than half of the pixels is their median.
    """
    grid = F.affine_grid(crops[:, :2], [len(crops), 1, side, side], align_corners=False)
    found = F.grid_sample((masks[:, None] + 1).float(), grid, mode="nearest", padding_mode="zeros", align_corners=False)
    classes = found.flatten(1)  # zero for pixels that do not count
    counted = classes > 0
    total = counted.sum(1)
    ordered = torch.where(counted, classes, torch.inf).sort(dim=1).values
    median = ordered.gather(1, ((total - 1).clamp(min=0) // 2)[:, None])
    share = ((classes == median) & counted).sum(1) / total.clamp(min=1)
    return torch.where(total > 0, share, 1.0)


def crop_scale(spec: InputSpec) -> tuple[tuple[float, float], bool]:
    """Return the range of the resize factor of training crops, and whether it is drawn uniformly."""
    low, high = spec.extra.get("scale") or (1.0, 1.0)
    return (low, high), bool(spec.extra.get("uniform_scale"))
