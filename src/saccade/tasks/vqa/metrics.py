"""Metrics of visual question answering."""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from ...data.spec import InputSpec
from ..metric import PLACE, Metrics, MetricSpec

METRICS = (
    MetricSpec("loss", "loss", larger_is_better=False),
    MetricSpec("score", "worth of the answers given", share=True),
)


class QuestionMetrics(Metrics):
    """Collects the scores of predicted answers."""

    primary = "score"

    @classmethod
    def metric_specs(cls, spec: InputSpec) -> tuple[MetricSpec, ...]:
        """Return loss and score."""
        return METRICS

    def measure(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return loss and score of each sample, B, and the predicted answer."""
        logits, shares = answers["output"], batch["target"].float()
        losses = F.binary_cross_entropy_with_logits(logits, shares, reduction="none").sum(1)
        return {"loss": losses, "score": answer_scores(logits, shares), "answer": logits.argmax(1)}

    def predictions(self) -> dict[str, Tensor]:
        """Return the predicted answers."""
        return {name: self.columns[name] for name in (PLACE, "answer", "score", "loss")}


def answer_scores(logits: Tensor, shares: Tensor) -> Tensor:
    """Return the soft scores of the predicted answers, B."""
    return shares.gather(1, logits.argmax(1, keepdim=True)).squeeze(1)
