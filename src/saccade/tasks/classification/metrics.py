"""Metrics of classification: accuracy, loss, calibration error."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...data.spec import InputSpec
from ...report.tally import confidence_bin
from ..metric import GROUP, PLACE, Metrics, MetricSpec

BINS = 15  # confidence bins of the calibration error
KEEP_LOGITS = 20_000_000  # most logits to save


def metric_specs(classes: int) -> tuple[MetricSpec, ...]:
    """Return the metrics of a classifier with the given number of classes."""
    found = [
        MetricSpec("loss", "loss", larger_is_better=False),
        MetricSpec("top1", "accuracy", share=True, chance=1 / max(classes, 1)),
        MetricSpec("macro_top1", "accuracy averaged over classes", share=True, by_group=True, source="top1"),
        MetricSpec(
            "ece", "expected calibration error", larger_is_better=False, share=True, statistic=calibration_error
        ),
    ]
    if classes > 5:
        found.insert(2, MetricSpec("top5", "top-5 accuracy", share=True, chance=5 / classes))
    return tuple(found)


class LogitMetrics(Metrics):
    """Collects logits and labels; `right` names the score of correct predictions."""

    right: ClassVar[str]

    def measure(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return logits and labels."""
        return {"logits": answers["output"], "label": batch["target"]}

    @property
    def logits(self) -> Tensor:
        """Logits of every sample, N, classes, float32 on the CPU."""
        return self.columns["logits"]

    @property
    def labels(self) -> Tensor:
        """The labels, N."""
        return self.columns["label"]

    @property
    def answers(self) -> Tensor:
        """The predicted class of each sample; for ties, which are frequent in half precision, the first."""
        return self.logits.argmax(1)

    def predictions(self) -> dict[str, Tensor]:
        """Return predictions for pages."""
        scores = self.scores()
        return {
            PLACE: self.columns[PLACE],
            "label": self.labels,
            "prediction": self.answers,
            "correct": scores[self.right],
            "confidence": self.logits.softmax(1).amax(1),
            "loss": scores["loss"],
        }


class ClassificationMetrics(LogitMetrics):
    """Metrics of single-label classification; without a spec, classes are counted from the logits."""

    primary = right = "top1"

    @classmethod
    def metric_specs(cls, spec: InputSpec) -> tuple[MetricSpec, ...]:
        """Return loss, accuracy and further metrics."""
        return metric_specs(len(spec.outputs))

    def measure(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return logits and labels."""
        self.specs = self.specs or metric_specs(answers["output"].shape[1])
        return super().measure(answers, batch)

    def stays(self, measurements: Mapping[str, Tensor]) -> bool:
        """Whether logits are few enough to stay on the device."""
        return sum(part["logits"].numel() for part in (*self.parts, measurements)) <= KEEP_LOGITS

    def compute(self) -> dict[str, float]:
        """Return loss, accuracy and top-5 accuracy, computed on the logits' device."""
        parts = self.parts if self.joined is None else [self.joined]
        if len({part["logits"].device for part in parts}) != 1:
            parts = [self.columns]
        logits, labels = (torch.cat([part[name] for part in parts]) for name in ("logits", "label"))
        right = _right(logits, labels)
        shares = [hits.double().mean() for hits in right.values()]
        found = torch.stack([F.cross_entropy(logits, labels).double(), *shares]).tolist()  # one synchronisation
        return dict(zip(("loss", *right), found, strict=True))

    def scores(self) -> dict[str, Tensor]:
        """Return correctness and loss of each sample, with its class as the group."""
        right = {name: hits.to(torch.uint8) for name, hits in _right(self.logits, self.labels).items()}
        return {
            "loss": F.cross_entropy(self.logits, self.labels, reduction="none"),
            GROUP: self.labels,
            "ece": torch.stack([self.logits.softmax(1).amax(1), right["top1"].float()], 1),
            **right,
        }

    def predictions(self) -> dict[str, Tensor]:
        """Return predictions for pages, and the logits unless they are too many."""
        few = self.logits.numel() <= KEEP_LOGITS
        return super().predictions() | ({"logits": self.logits.half()} if few else {})


def _right(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return whether each label is the top class, and in the top 5; ties are ordered by index."""
    found = {"top1": logits.argmax(1) == labels}
    if logits.shape[1] > 5:
        own = logits.gather(1, labels[:, None])
        earlier = torch.arange(logits.shape[1], device=logits.device) < labels[:, None]
        ahead = ~(logits <= own) | ((logits == own) & earlier)  # NaN ranks first
        found["top5"] = ahead.sum(1) < 5
    return found


def scores_of_predictions(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of an earlier version's run, from its predictions."""
    found = {"top1": kept["correct"], GROUP: kept["label"]}
    if "confidence" in kept:
        found["ece"] = np.stack([kept["confidence"], kept["correct"]], 1).astype(np.float32)
    if "logits" in kept and kept["logits"].shape[1] > 5:
        own = np.take_along_axis(kept["logits"], np.asarray(kept["label"])[:, None], 1)
        found["top5"] = ((kept["logits"] > own).sum(1) < 5).astype(np.uint8)
    return found | {name: kept[name] for name in ("loss", PLACE) if name in kept}


def calibration_error(records: np.ndarray) -> float:
    """Return the expected calibration error over bins of equal width, of records N, 2."""
    confidence, right = records.astype(np.float64).T
    gaps = np.bincount(confidence_bin(confidence, BINS), weights=confidence - right, minlength=BINS)
    return float(np.abs(gaps).sum() / len(records))
