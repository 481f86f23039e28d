"""Codec of multi-label classification."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...data.augment import Follow, Mix, blend
from ...settings import AugmentConfig, LossConfig
from ..answer import require_width
from ..codec import Codec


class MultilabelCodec(Codec):
    """Mixes labels like their images, and decodes logits."""

    output = "logits"

    def mixed_targets(self, augment: AugmentConfig, loss: LossConfig) -> Follow:
        """Return the function that makes soft labels."""
        return SoftLabels(loss.smoothing)

    def read_output(self, output: np.ndarray) -> np.ndarray:
        """Return label probabilities, B, labels float32."""
        require_width(output, self.spec, "logits", "labels")
        return torch.from_numpy(output).sigmoid().float().numpy()


@dataclass(frozen=True)
class SoftLabels:
    """Converts labels to soft labels."""

    smoothing: float = 0.0  # label smoothing, towards 0.5

    def __call__(self, labels: Tensor, mix: Mix | None) -> Tensor:
        """Return labels from 0 to 1, B, labels."""
        soft = labels.float() * (1 - self.smoothing) + self.smoothing / 2
        return blend(soft, mix)
