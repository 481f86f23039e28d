"""Codec of detection: encodes images and objects, and filters raw outputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ...data.feed import Expand
from ...data.frame import own_boxes
from ...data.framing import Encoder
from ...data.sides import random_crops
from ...data.spec import InputSpec
from ...settings import AugmentConfig, LossConfig
from ..codec import Codec
from ..segmentation.augment import AfterCrops, CropAugment, crop_scale
from .data import ObjectEncoder
from .detector import CELLS, LABEL, WHOLE, answer_gap, read_answers


class DetectionCodec(Codec):
    """Encodes images and objects, and decodes outputs."""

    output = "objects"
    target_names = ("boxes", "labels", "crowd", "mask", "own_boxes", "areas", "mask_values", "mask_runs")

    def encoder(self, augment: AugmentConfig | None = None) -> Encoder:
        """Return the encoder of images and objects; crops of squares are made on the device."""
        if augment is None:
            return ObjectEncoder(self.spec.framing, own=self.spec.own_frame)
        scale, uniform = crop_scale(self.spec)
        return ObjectEncoder(random_crops(self.spec.framing, augment, scale=scale, uniform_scale=uniform))

    def expander(self, augment: AugmentConfig, loss: LossConfig, *, device: torch.device) -> Expand:
        """Return the augmentation, which makes training crops."""
        framed: dict[str, Any] = {"mean": self.spec.mean, "std": self.spec.std, "device": device}
        if self.spec.framing.drawn:
            return AfterCrops(augment, img_size=self.spec.img_size, **framed)
        scale, uniform = crop_scale(self.spec)
        return CropAugment(augment, crop=self.spec.img_size, scale=scale, uniform_scale=uniform, **framed)

    def gap(self, first: np.ndarray, second: np.ndarray) -> float:
        """Return the largest difference of outputs above the score threshold, in any order."""
        return answer_gap(first, second, least=answer_filter(self.spec)["least"])

    def read_output(self, output: np.ndarray) -> np.ndarray:
        """Return the filtered objects, B, K, columns: box, score, class (-1 for none) and mask cells."""
        if output.ndim != 3 or output.shape[2] < CELLS:
            raise ValueError(f"its output has the shape {output.shape} instead of boxes with score and class")
        return read_answers(torch.from_numpy(np.ascontiguousarray(output)), **answer_filter(self.spec)).rows().numpy()

    def unframe(self, row: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Return boxes in pixels of the original image, and a last row of class `WHOLE` with the image's size.

        Objects in the letterbox padding are removed.
        """
        height, width = size
        boxes = own_boxes(torch.from_numpy(row[:, :4]).double(), size, self.spec.framing.canvas(*size)).numpy()
        boxes = boxes.astype(row.dtype)
        found = np.concatenate([boxes, row[:, 4:]], axis=1)
        inside = boxes.clip(0, [width, height] * 2)
        found[(inside[:, 2:] <= inside[:, :2]).any(1), LABEL] = -1
        whole = np.zeros((1, row.shape[1]), row.dtype)
        whole[0, [2, 3, LABEL]] = width, height, WHOLE
        return np.concatenate([found, whole])


def answer_filter(spec: InputSpec) -> dict[str, Any]:
    """Return the spec's thresholds for filtering objects."""
    extra: Mapping[str, Any] = spec.extra
    return {
        "overlap": float(extra.get("overlap") or 0.5),
        "least": float(extra.get("least", 0.05)),
        "kept": int(extra.get("kept", 100)),
    }
