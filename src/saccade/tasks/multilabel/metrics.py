"""Metrics of multi-label classification: mean average precision, cross-fitted F1."""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...data.spec import InputSpec
from ..metric import PLACE, Metrics, MetricSpec


def metric_specs(prevalence: float | None) -> tuple[MetricSpec, ...]:
    """Return the metrics; `prevalence`, the mean label frequency, is the chance level."""
    return (
        MetricSpec("loss", "loss", larger_is_better=False),
        MetricSpec("map", "mean average precision", share=True, chance=prevalence, statistic=mean_average_precision),
        MetricSpec("f1_micro", "F1 over all labels", share=True, statistic=micro_f1, source="decided"),
        MetricSpec("f1_macro", "F1 averaged over labels", share=True, statistic=macro_f1, source="decided"),
    )


class MultilabelMetrics(Metrics):
    """Collects probabilities and labels."""

    primary = "map"

    @classmethod
    def metric_specs(cls, spec: InputSpec) -> tuple[MetricSpec, ...]:
        """Return mean average precision, F1 and loss."""
        return metric_specs(spec.extra.get("prevalence"))

    def calibrate(self) -> None:
        """Store the thresholds chosen on the validation samples."""
        if self.spec is not None:
            self.spec.extra["thresholds"] = [round(float(value), 6) for value in self.thresholds()]

    def measure(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return probabilities and labels, B, labels."""
        return {"logit": answers["output"], "label": batch["target"].to(torch.uint8)}

    @property
    def shares(self) -> np.ndarray:
        """Predicted probability of each label, N, labels."""
        return self.columns["logit"].sigmoid().numpy()

    @property
    def labels(self) -> np.ndarray:
        """True labels, N, labels, 0 or 1."""
        return self.columns["label"].numpy()

    @property
    def losses(self) -> Tensor:
        """Binary cross-entropy of each sample, N, averaged over labels."""
        logits, there = self.columns["logit"], self.columns["label"].float()
        return F.binary_cross_entropy_with_logits(logits, there, reduction="none").mean(1)

    def thresholds(self) -> np.ndarray:
        """Return the decision threshold of each label, chosen on all samples."""
        return choose_thresholds(self.shares, self.labels)

    def scores(self) -> dict[str, Tensor]:
        """Return loss, probabilities with labels, and decisions by thresholds chosen on the other half."""
        shares, labels = self.shares, self.labels
        decided = 2 * labels + decide_crossed(shares, labels)
        ranked = np.stack([shares, labels.astype(np.float32)], axis=1)
        return {"loss": self.losses, "map": torch.from_numpy(ranked), "decided": torch.from_numpy(decided)}

    def predictions(self) -> dict[str, Tensor]:
        """Return probabilities, labels and thresholds for pages."""
        kept = {PLACE: self.columns[PLACE], "share": torch.from_numpy(self.shares), "label": self.columns["label"]}
        return kept | {"loss": self.losses, "threshold": torch.from_numpy(self.thresholds())}


def choose_thresholds(shares: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the threshold with the highest F1 for each label, between two probabilities; 0.5 without samples."""
    found = np.full(shares.shape[1], 0.5, dtype=np.float32)
    for column in range(shares.shape[1]):
        share, label = shares[:, column].astype(np.float64), labels[:, column]
        positives = int(label.sum())
        if not positives or positives == len(label):
            continue
        share, right, last = _ranked(share, label)
        f1 = 2 * right[last] / (last + 1 + positives)
        best = last[np.argmax(f1)]
        below = share[best + 1] if best + 1 < len(share) else 0.0
        found[column] = (share[best] + below) / 2
    return found


def _ranked(share: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sorted probabilities, cumulative labels, and the last index of each distinct probability."""
    order = np.argsort(-share, kind="stable")
    share = share[order]
    return share, np.cumsum(label[order]), np.flatnonzero(np.append(np.diff(share), -1.0))


def decide_crossed(shares: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return decisions, N, labels, for each half of the samples by thresholds chosen on the other half."""
    decided = np.zeros(shares.shape, dtype=np.uint8)
    half = np.arange(len(shares)) % 2 == 0
    for own in (half, ~half):
        if own.any():
            limits = choose_thresholds(shares[~own], labels[~own]) if (~own).any() else 0.5
            decided[own] = shares[own] >= limits
    return decided


def average_precision(share: np.ndarray, label: np.ndarray) -> float:
    """Return the average precision of a label, with ties handled together; NaN without samples."""
    positives = label.sum()
    if not positives:
        return float("nan")
    _, right, last = _ranked(share, label)
    gained = np.diff(right[last], prepend=0.0)
    return float((gained * right[last] / (last + 1)).sum() / positives)


def mean_average_precision(records: np.ndarray) -> float:
    """Return the mean average precision over present labels, of records N, 2, labels: probabilities and labels."""
    found = [average_precision(records[:, 0, column], records[:, 1, column]) for column in range(records.shape[2])]
    known = [value for value in found if np.isfinite(value)]
    return float(np.mean(known)) if known else 0.0


def _counts(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return true positives and errors of each label, of records N, labels: 2 * truth + decision."""
    return (records == 3).sum(0), ((records == 1) | (records == 2)).sum(0)


def micro_f1(records: np.ndarray) -> float:
    """Return micro-averaged F1."""
    hits, wrong = (part.sum() for part in _counts(records))
    return float(2 * hits / max(2 * hits + wrong, 1))


def macro_f1(records: np.ndarray) -> float:
    """Return macro-averaged F1, without labels that neither occur nor are predicted."""
    hits, wrong = _counts(records)
    used = 2 * hits + wrong > 0
    return float(np.mean(2 * hits[used] / (2 * hits + wrong)[used])) if used.any() else 0.0
