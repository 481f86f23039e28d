"""How good classes of texts are: accuracy, Matthews' correlation, loss."""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..metric import GROUP, PLACE, Metrics, MetricSpec


def metric_specs(classes: int) -> tuple[MetricSpec, ...]:
    """Return the metrics of texts of so many classes."""
    return (
        MetricSpec("loss", "loss", larger_is_better=False),
        MetricSpec("accuracy", "accuracy", share=True, chance=1 / max(classes, 1)),
        MetricSpec("matthews", "Matthews' correlation", chance=0.0, statistic=matthews, source="pair"),
    )


class TextMetrics(Metrics):
    """Collects logits and classes."""

    def measure(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return logits, B, classes, and classes, B."""
        return {"logits": answers["output"], "label": batch["target"]}

    def scores(self) -> dict[str, Tensor]:
        """Return loss and rightness of each text, and its class beside the answer, of which a confusion is counted."""
        logits, labels = self.columns["logits"], self.columns["label"]
        answers = logits.argmax(1)
        return {
            "loss": F.cross_entropy(logits, labels, reduction="none"),
            "accuracy": (answers == labels).to(torch.uint8),
            "pair": torch.stack([labels, answers], dim=1).to(torch.int32),
            GROUP: labels,
        }

    def predictions(self) -> dict[str, Tensor]:
        """Return what pages show."""
        logits, scores = self.columns["logits"], self.scores()
        return {
            PLACE: self.columns[PLACE],
            "label": self.columns["label"],
            "prediction": logits.argmax(1),
            "correct": scores["accuracy"],
            "confidence": logits.softmax(1).amax(1),
            "loss": scores["loss"],
        }


def matthews(pairs: np.ndarray) -> float:
    """Return Matthews' correlation of classes and answers, N, 2; of several classes its form R_K; 0 where undefined."""
    if not len(pairs):
        return 0.0
    count = int(pairs.max()) + 1
    confusion = np.zeros((count, count))
    np.add.at(confusion, (pairs[:, 0], pairs[:, 1]), 1)
    total, right = confusion.sum(), np.trace(confusion)
    truth, said = confusion.sum(1), confusion.sum(0)
    spread = np.sqrt((total**2 - (truth**2).sum()) * (total**2 - (said**2).sum()))
    return float((right * total - truth @ said) / spread) if spread > 0 else 0.0
