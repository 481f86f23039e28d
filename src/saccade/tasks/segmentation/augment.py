"""Training crops of image and mask: random scale, flip and colour."""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ...data.augment import Augment
from ...data.geometry import AREA, FLIP, LEFT, RATIO, TOP, Geometry, matrices, rand_moves
from ...settings import AugmentConfig


class CropAugment(Augment):
    """Random crops at a random scale; grey padding is ignored in the loss.

    Args:
        config: colour augmentation, RandAugment and flips.
        crop: side of the crops.
        scale: range of the resize factor, log-uniform.
        more: further arguments of `Augment`.
    """

    def __init__(self, config: AugmentConfig, *, crop: int, scale: Sequence[float], **more: Any) -> None:
        super().__init__(config, img_size=crop, **more)
        self.scale = (float(scale[0]), float(scale[1]))

    def geometry(self, draws: Tensor, *, width: int, operations: int, later: Sequence[Tensor]) -> Geometry:
        """Draw the crops of a batch."""
        config = self.config
        crop = scaled_crops(draws, scale=self.scale, ratio=config.ratio, flip=config.flip, part=self.img_size / width)
        moves = rand_moves(crop, draws, config, operations)
        after = reduce(torch.matmul, later) if later else None
        return Geometry(None, moves, crop, after, turned=False, resampled=True, side=self.img_size)


def scaled_crops(
    draws: Tensor, *, scale: tuple[float, float], ratio: Sequence[float], flip: float, part: float
) -> Tensor:
    """Return matrices from crop to sample coordinates, -1 to 1; B, 3, 3.

    Args:
        scale: range of the resize factor.
        ratio: range of the aspect ratio distortion.
        part: side of a crop relative to the sample, before resizing.
    """
    low, high = (math.log(side) for side in scale)
    factor = torch.exp(low + draws[:, AREA] * (high - low))
    narrow, wide = (0.25 * math.log(side) for side in ratio)  # half the distortion of classification, over both sides
    stretch = torch.exp(narrow + draws[:, RATIO] * (wide - narrow))
    width, height = part / factor * stretch, part / factor / stretch
    right = (2 * draws[:, LEFT] - 1) * (1 - width).abs()
    down = (2 * draws[:, TOP] - 1) * (1 - height).abs()
    side = torch.where(draws[:, FLIP] < flip, -1.0, 1.0)
    return matrices(side * width, 0, right, 0, height, down)
