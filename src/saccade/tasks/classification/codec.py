"""Images and classes as tensors, logits as probabilities."""

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from ...data.augment import Follow, Mix, blend
from ...settings import AugmentConfig, LossConfig
from ..answer import require_width
from ..codec import Codec


class OneOfCodec(Codec):
    """Reads logits, one for each output, as probabilities."""

    output = "logits"

    def read_output(self, output: np.ndarray) -> np.ndarray:
        """Return probabilities of classes, B, K float32, of logits."""
        require_width(output, self.spec, "logits", "classes")
        logits = output.astype(np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


class ClassCodec(OneOfCodec):
    """Mixes classes as their images are mixed."""

    def mixed_targets(self, augment: AugmentConfig, loss: LossConfig) -> Follow:
        """Return what labels become: shares of classes where any are shared."""
        shared = bool(loss.smoothing or augment.mixup or augment.cutmix)
        return ClassShares(len(self.spec.outputs), loss.smoothing) if shared else shares_of


def shares_of(labels: Tensor, mix: Mix | None) -> Tensor:  # noqa: ARG001
    """Return labels as they are: nothing is shared."""
    return labels


@dataclass(frozen=True)
class ClassShares:
    """Labels as shares of classes, smoothed, and mixed as the images were."""

    classes: int
    smoothing: float  # share of a label spread evenly over all of them

    def __call__(self, labels: Tensor, mix: Mix | None) -> Tensor:
        """Return shares, B, classes, of labels, B."""
        shares = F.one_hot(labels, self.classes).float()
        shares = shares * (1 - self.smoothing) + self.smoothing / self.classes
        return blend(shares, mix)
