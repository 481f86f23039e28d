"""Codec of classification: soft labels and probabilities."""

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from ...data.augment import Follow, Mix, blend
from ...settings import AugmentConfig, LossConfig
from ..answer import require_width
from ..codec import Codec


class OneOfCodec(Codec):
    """Decodes logits to probabilities."""

    output = "logits"

    def read_output(self, output: np.ndarray) -> np.ndarray:
        """Return class probabilities, B, K float32, of logits."""
        require_width(output, self.spec, "logits", "classes")
        logits = output.astype(np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


class ClassCodec(OneOfCodec):
    """Mixes labels like their images."""

    def mixed_targets(self, augment: AugmentConfig, loss: LossConfig) -> Follow:
        """Return the function that makes soft labels, if labels are mixed or smoothed."""
        shared = bool(loss.smoothing or augment.mixup or augment.cutmix)
        return ClassShares(len(self.spec.outputs), loss.smoothing) if shared else shares_of


def shares_of(labels: Tensor, mix: Mix | None) -> Tensor:  # noqa: ARG001
    """Return labels unchanged."""
    return labels


@dataclass(frozen=True)
class ClassShares:
    """Converts labels to soft labels, smoothed and mixed like the images."""

    classes: int
    smoothing: float  # label smoothing

    def __call__(self, labels: Tensor, mix: Mix | None) -> Tensor:
        """Return soft labels, B, classes, of labels, B."""
        shares = F.one_hot(labels, self.classes).float()
        shares = shares * (1 - self.smoothing) + self.smoothing / self.classes
        return blend(shares, mix)
