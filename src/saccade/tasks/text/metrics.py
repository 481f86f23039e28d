"""Metrics of text classification: accuracy, Matthews correlation, loss."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...data.spec import InputSpec
from ..classification.metrics import LogitMetrics
from ..metric import GROUP, MetricSpec


def metric_specs(classes: int) -> tuple[MetricSpec, ...]:
    """Return the metrics for the given number of classes."""
    return (
        MetricSpec("loss", "loss", larger_is_better=False),
        MetricSpec("accuracy", "accuracy", share=True, chance=1 / max(classes, 1)),
        MetricSpec("matthews", "Matthews' correlation", chance=0.0, statistic=matthews, source="pair"),
    )


class TextMetrics(LogitMetrics):
    """Metrics of text classification."""

    primary = right = "accuracy"

    @classmethod
    def metric_specs(cls, spec: InputSpec) -> tuple[MetricSpec, ...]:
        """Return loss, accuracy and Matthews correlation."""
        return metric_specs(len(spec.outputs))

    @classmethod
    def primary_of(cls, spec: InputSpec) -> str:
        """Return the dataset's primary metric."""
        return str(spec.extra.get("metric", cls.primary))

    def scores(self) -> dict[str, Tensor]:
        """Return loss and correctness of each text, and pairs of class and prediction."""
        return {
            "loss": F.cross_entropy(self.logits, self.labels, reduction="none"),
            "accuracy": (self.answers == self.labels).to(torch.uint8),
            "pair": torch.stack([self.labels, self.answers], dim=1).to(torch.int32),
            GROUP: self.labels,
        }


def matthews(pairs: np.ndarray) -> float:
    """Return the Matthews correlation of classes and predictions, N, 2 (R_K for several classes); 0 if undefined."""
    if not len(pairs):
        return 0.0
    count = int(pairs.max()) + 1
    confusion = np.zeros((count, count))
    np.add.at(confusion, (pairs[:, 0], pairs[:, 1]), 1)
    total, right = confusion.sum(), np.trace(confusion)
    truth, predicted = confusion.sum(1), confusion.sum(0)
    spread = np.sqrt((total**2 - (truth**2).sum()) * (total**2 - (predicted**2).sum()))
    return float((right * total - truth @ predicted) / spread) if spread > 0 else 0.0
