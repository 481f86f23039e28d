"""Presenter of regression."""

import numpy as np

from ..presenter import Presenter

NEAR = 0.01  # largest difference of agreeing answers, in standard deviations


class RegressionPresenter(Presenter):
    """Presents numbers."""

    outputs_key = "columns"

    def same(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return where all numbers differ by at most NEAR standard deviations."""
        return np.abs((first - second) / np.asarray(self.spec.extra["std"])).max(1) <= NEAR
