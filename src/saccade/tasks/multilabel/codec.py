"""Labels as tensors, logits as the probability of each label."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...data.augment import Follow, Mix, blend
from ...settings import AugmentConfig, LossConfig
from ..answer import require_width
from ..codec import Codec


class MultilabelCodec(Codec):
    """Mixes labels as their images are mixed, and reads logits."""

    output = "logits"

    def mixed_targets(self, augment: AugmentConfig, loss: LossConfig) -> Follow:
        """Return labels as numbers, mixed as the images are."""
        return SoftLabels(loss.smoothing)

    def read_output(self, output: np.ndarray) -> np.ndarray:
        """Return the probability of each label, B, labels float32."""
        require_width(output, self.spec, "logits", "labels")
        return torch.from_numpy(output).sigmoid().float().numpy()


@dataclass(frozen=True)
class SoftLabels:
    """What labels become where images are mixed."""

    smoothing: float = 0.0  # share by which a label is drawn towards a half

    def __call__(self, labels: Tensor, mix: Mix | None) -> Tensor:
        """Return labels as numbers from 0 to 1, B, labels."""
        soft = labels.float() * (1 - self.smoothing) + self.smoothing / 2
        return blend(soft, mix)
