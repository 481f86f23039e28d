"""Numbers as tensors, in deviations, and back in their own units."""

import numpy as np
import torch
from torch import Tensor

from ...config import AugmentConfig, LossConfig
from ...data.augment import Follow, Mix
from ..answer import require_width
from ..codec import Codec


class RegressionCodec(Codec):
    """Mixes numbers as their images are mixed, and reads deviations."""

    output = "values"

    def mixed_targets(self, augment: AugmentConfig, loss: LossConfig) -> Follow:
        """Return numbers, mixed as the images are."""
        return scaled

    def read_output(self, output: np.ndarray) -> np.ndarray:
        """Return numbers in their own units, B, columns float32."""
        require_width(output, self.spec, "numbers", "columns")
        return (output * np.asarray(self.spec.extra["std"]) + np.asarray(self.spec.extra["mean"])).astype(np.float32)


def scaled(values: Tensor, mix: Mix | None) -> Tensor:
    """Return numbers as they are, mixed as the images were."""
    return values if mix is None else torch.lerp(values[mix.partner], values, mix.share[:, None])
