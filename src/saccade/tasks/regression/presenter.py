"""How numbers are shown."""

import numpy as np

from ..presenter import Presenter

NEAR = 0.01  # deviations by which two answers may differ and are still the same to people


class RegressionPresenter(Presenter):
    """Shows numbers."""

    outputs_key = "columns"

    def same(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return where no number differs by more than a hundredth of its deviation in training."""
        return np.abs((first - second) / np.asarray(self.spec.extra["std"])).max(1) <= NEAR
