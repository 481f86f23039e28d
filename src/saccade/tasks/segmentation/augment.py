"""Training crops of image and mask: of a random scale, flipped, recoloured, by the one geometry."""

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
    """Crops of one side out of samples at a random scale; beyond a sample's edge lies grey that counts nowhere.

    Args:
        config: colours, RandAugment and flips.
        crop: side of the crops.
        scale: smallest and largest factor by which samples are enlarged, drawn evenly in octaves.
        more: as `Augment` takes it.
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
    """Return matrices from a crop's square, -1 to 1, to the sample's, B, 3, 3.

    Args:
        scale: range of the factor by which samples are enlarged.
        ratio: range of width over height, by which samples are stretched.
        part: side of a crop in sides of a sample, before it is enlarged.
    """
    low, high = (math.log(side) for side in scale)
    factor = torch.exp(low + draws[:, AREA] * (high - low))
    narrow, wide = (0.25 * math.log(side) for side in ratio)  # half of what classification bears, over both sides
    stretch = torch.exp(narrow + draws[:, RATIO] * (wide - narrow))
    width, height = part / factor * stretch, part / factor / stretch
    right = (2 * draws[:, LEFT] - 1) * (1 - width).abs()
    down = (2 * draws[:, TOP] - 1) * (1 - height).abs()
    side = torch.where(draws[:, FLIP] < flip, -1.0, 1.0)
    return matrices(side * width, 0, right, 0, height, down)
