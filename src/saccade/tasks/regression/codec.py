"""Numbers as tensors, in deviations, and back in their own units."""

import numpy as np

from ...data.augment import Follow, blend
from ...settings import AugmentConfig, LossConfig
from ..answer import require_width
from ..codec import Codec


class RegressionCodec(Codec):
    """Mixes numbers as their images are mixed, and reads deviations."""

    output = "values"

    def mixed_targets(self, augment: AugmentConfig, loss: LossConfig) -> Follow:
        """Return numbers, mixed as the images are."""
        return blend

    def read_output(self, output: np.ndarray) -> np.ndarray:
        """Return numbers in their own units, B, columns float32."""
        require_width(output, self.spec, "numbers", "columns")
        return (output * np.asarray(self.spec.extra["std"]) + np.asarray(self.spec.extra["mean"])).astype(np.float32)
