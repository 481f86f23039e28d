"""Codec of segmentation."""

from typing import Any

import numpy as np
import torch

from ...data.feed import Expand
from ...data.framing import Encoder, unfit
from ...data.sides import random_crops
from ...settings import AugmentConfig, LossConfig
from ..codec import Codec
from .augment import AfterCrops, CropAugment, crop_scale
from .data import MaskEncoder
from .testing import own_classes


class SegmentationCodec(Codec):
    """Encodes images and masks, and decodes logits."""

    output = "logits"
    target_names = ("mask", "mask_values", "mask_runs", "size")

    def encoder(self, augment: AugmentConfig | None = None) -> Encoder:
        """Return the encoder of images and masks; crops of squares are made on the device."""
        if augment is None:
            return MaskEncoder(self.spec.framing, own=self.spec.own_frame)
        scale, uniform = crop_scale(self.spec)
        framing = random_crops(self.spec.framing, augment, crop=self._crop, scale=scale, uniform_scale=uniform)
        return MaskEncoder(framing, cat_max_ratio=self.spec.extra.get("cat_max_ratio", 1.0))

    def expander(self, augment: AugmentConfig, loss: LossConfig, *, device: torch.device) -> Expand:
        """Return the augmentation, which makes training crops."""
        framed: dict[str, Any] = {"mean": self.spec.mean, "std": self.spec.std, "device": device}
        if self.spec.framing.drawn:
            return AfterCrops(augment, img_size=self._crop, **framed)
        scale, uniform = crop_scale(self.spec)
        framed |= {"scale": scale, "uniform_scale": uniform, "cat_max_ratio": self.spec.extra.get("cat_max_ratio", 1.0)}
        return CropAugment(augment, crop=self._crop, **framed)

    @property
    def _crop(self) -> int:
        """Side of training crops."""
        return self.spec.extra.get("crop") or self.spec.img_size

    def read_output(self, output: np.ndarray) -> np.ndarray:
        """Return the scores of every class and pixel of the framed images, which `unframe` decodes.

        Models of earlier versions are decoded in the square: the class of every pixel, B, H, W int16.
        """
        if output.ndim != 4 or output.shape[1] != len(self.spec.outputs):
            raise ValueError(
                f"its output has the shape {output.shape} instead of scores for {len(self.spec.outputs)} classes"
            )
        return output if self.spec.own_frame else output.argmax(1).astype(np.int16)

    def unframe(self, row: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Return the classes of the original image's pixels, H, W int16."""
        if self.spec.own_frame:
            return own_classes(torch.from_numpy(row)[None], size)[0].numpy()
        return unfit(row, size) if self.spec.framing.fit and row.shape[0] == row.shape[1] else row
