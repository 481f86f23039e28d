"""What answers to questions are worth."""

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
    """Collects what answers are worth."""

    primary = "score"

    @classmethod
    def metric_specs(cls, spec: InputSpec) -> tuple[MetricSpec, ...]:
        """Return loss and score."""
        return METRICS

    def measure(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return loss and worth of each sample, B, and the answer given."""
        logits, shares = answers["output"], batch["target"].float()
        losses = F.binary_cross_entropy_with_logits(logits, shares, reduction="none").sum(1)
        return {"loss": losses, "score": worth(logits, shares), "answer": logits.argmax(1)}

    def predictions(self) -> dict[str, Tensor]:
        """Return the answers given."""
        return {name: self.columns[name] for name in (PLACE, "answer", "score", "loss")}


def worth(logits: Tensor, shares: Tensor) -> Tensor:
    """Return how right the likeliest answers are, B."""
    return shares.gather(1, logits.argmax(1, keepdim=True)).squeeze(1)
