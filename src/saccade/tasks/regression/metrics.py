"""How near numbers are: mean and squared distance, explained variance, order."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ...data.spec import InputSpec
from ..metric import PLACE, Metrics, MetricSpec


def metric_specs(columns: int) -> tuple[MetricSpec, ...]:
    """Return the metrics of numbers; of several columns distances are told in deviations of the training samples."""
    unit = "" if columns == 1 else "deviations"
    return (
        MetricSpec("loss", "loss", larger_is_better=False),
        MetricSpec("mae", "mean absolute error", larger_is_better=False, unit=unit),
        MetricSpec(
            "rmse", "root mean squared error", larger_is_better=False, unit=unit, statistic=root, source="squared"
        ),
        MetricSpec("r2", "R squared", chance=0.0, statistic=explained, source="pair"),
        MetricSpec("spearman", "Spearman's correlation", chance=0.0, statistic=rank_correlation, source="pair"),
    )


class RegressionMetrics(Metrics):
    """Collects answers and truth; several columns are brought to one scale by their deviations in training."""

    primary = "mae"

    def __init__(self, spec: InputSpec | None) -> None:
        super().__init__(spec)
        std = [] if spec is None else spec.extra["std"]
        self.scale = torch.tensor(std if len(std) > 1 else [1.0])

    @classmethod
    def metric_specs(cls, spec: InputSpec) -> tuple[MetricSpec, ...]:
        """Return distances, explained variance and order."""
        return metric_specs(len(spec.outputs))

    def measure(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return answers and truth, B, columns, and the loss of each sample."""
        return {"answer": answers["value"], "truth": batch["target"].float(), "loss": answers["loss"]}

    def scores(self) -> dict[str, Tensor]:
        """Return distances, and answers beside truth."""
        answer, truth = self.columns["answer"], self.columns["truth"]
        off = (answer - truth) / self.scale
        return {
            "loss": self.columns["loss"],
            "mae": off.abs().mean(1),
            "squared": off.square().mean(1),
            "pair": torch.stack([answer, truth], dim=1),
        }

    def predictions(self) -> dict[str, Tensor]:
        """Return answers and truth for pages."""
        kept = {name: self.columns[name] for name in (PLACE, "answer", "truth", "loss")}
        return kept | {"mae": self.scores()["mae"]}


def root(squared: np.ndarray) -> float:
    """Return the root of the mean."""
    return float(np.sqrt(squared.astype(np.float64).mean()))


def explained(pairs: np.ndarray) -> float:
    """Return R squared, the share of the variance that answers explain, averaged over columns; pairs N, 2, columns."""
    answer, truth = pairs[:, 0].astype(np.float64), pairs[:, 1].astype(np.float64)
    left = np.square(truth - answer).sum(0)
    whole = np.square(truth - truth.mean(0)).sum(0)
    return float(np.mean(1 - left / np.maximum(whole, 1e-30)))


def rank_correlation(pairs: np.ndarray) -> float:
    """Return Spearman's correlation of answers and truth, averaged over columns; 0 where all answers are the same."""
    from scipy.stats import rankdata  # scipy takes a moment to import

    found = []
    for column in range(pairs.shape[2]):
        first, second = (rankdata(pairs[:, side, column]) for side in (0, 1))
        spread = first.std() * second.std()
        found.append(((first - first.mean()) * (second - second.mean())).mean() / spread if spread > 0 else 0.0)
    return float(np.mean(found))
