"""Codec of regression: standardised numbers."""

import numpy as np

from ...data.augment import Follow, blend
from ...settings import AugmentConfig, LossConfig
from ..answer import require_width
from ..codec import Codec


class RegressionCodec(Codec):
    """Mixes numbers like their images, and decodes standardised outputs."""

    output = "values"

    def mixed_targets(self, augment: AugmentConfig, loss: LossConfig) -> Follow:
        """Return the function that mixes numbers."""
        return blend

    def read_output(self, output: np.ndarray) -> np.ndarray:
        """Return numbers in their units, B, columns float32."""
        require_width(output, self.spec, "numbers", "columns")
        return (output * np.asarray(self.spec.extra["std"]) + np.asarray(self.spec.extra["mean"])).astype(np.float32)
