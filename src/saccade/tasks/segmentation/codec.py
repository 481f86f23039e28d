"""Codec of segmentation."""

from typing import Any

import numpy as np
import torch

from ...data.feed import Expand
from ...data.framing import Encoder, unfit
from ...settings import AugmentConfig, LossConfig
from ..codec import Codec
from .augment import CropAugment
from .data import MaskEncoder
from .testing import own_classes


class SegmentationCodec(Codec):
    """Encodes images and masks, and decodes logits."""

    output = "logits"
    target_names = ("mask", "mask_values", "mask_runs", "size")

    def encoder(self, augment: AugmentConfig | None = None) -> Encoder:
        """Return the encoder of images and masks; crops are made on the device."""
        return MaskEncoder(self.spec.framing, own=augment is None and self.spec.own_frame)

    def expander(self, augment: AugmentConfig, loss: LossConfig, *, device: torch.device) -> Expand:
        """Return the augmentation, which makes training crops."""
        extra = self.spec.extra
        crop, scale = extra.get("crop") or self.spec.img_size, extra.get("scale") or [1.0, 1.0]
        more = {name: extra[name] for name in ("uniform_scale", "cat_max_ratio") if name in extra}
        framed: dict[str, Any] = {"mean": self.spec.mean, "std": self.spec.std, "device": device}
        return CropAugment(augment, crop=crop, scale=scale, **more, **framed)

    def read_output(self, output: np.ndarray) -> np.ndarray:
        """Return the scores of every class and pixel of the square, which `unframe` decodes.

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
