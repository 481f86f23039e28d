"""Multi-label classification."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data.feed import Batch
from ...data.spec import InputSpec
from ...data.targets import Counts
from ...layers.numerics import upcast
from ...settings import ConfigError, LossConfig
from ..classification.task import read_logits
from ..registering import register_task
from ..task import Task
from .codec import MultilabelCodec
from .metrics import MultilabelMetrics
from .presenter import MultilabelPresenter
from .reader import MultilabelReader


@dataclass(frozen=True)
class MultilabelOptions:
    """Options of `--task multilabel`."""

    # "bce", binary cross-entropy, or "asymmetric", which down-weights easy negatives (Ridnik et al.)
    loss: Literal["bce", "asymmetric"] = "bce"
    gamma_pos: float = 0.0  # focusing exponent of positives in "asymmetric"
    gamma_neg: float = 4.0  # focusing exponent of negatives
    clip: float = 0.05  # probability below which negatives are ignored
    columns: list[str] | None = None  # label columns of 0 and 1, if the list has others

    def __post_init__(self) -> None:
        """Refuse options of the asymmetric loss for "bce"."""
        own = ("gamma_pos", "gamma_neg", "clip")
        if self.loss == "bce" and (idle := [name for name in own if getattr(self, name) != getattr(type(self), name)]):
            raise ValueError(
                f"{', '.join(idle)} only applies to loss=asymmetric, but loss={self.loss} was given; give both"
            )


@register_task("multilabel")
class Multilabel(Task):
    """Multi-label classification with binary cross-entropy or asymmetric loss.

    Args:
        model: maps images to one logit a label, or to an object with `logits`.
        options: the loss and its options.
        positive_weights: weight of positives for each label.
    """

    reader, codec, metrics = MultilabelReader, MultilabelCodec, MultilabelMetrics
    presenter = MultilabelPresenter
    Options = MultilabelOptions
    asked_by = ()

    positive_weights: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        *,
        options: MultilabelOptions | None = None,
        positive_weights: Tensor | None = None,
    ) -> None:
        super().__init__(model, options=options)
        self.register_buffer("positive_weights", positive_weights, persistent=False)

    @classmethod
    def arguments(cls, spec: InputSpec, options: Any, loss: LossConfig | None, counts: Counts) -> dict[str, Any]:
        """Return the options and the labels' weights."""
        weights = None if loss is None else _positive_weights(loss, counts, labels=len(spec.outputs))
        return {"options": options, "positive_weights": weights}

    def loss(self, batch: Batch, *, generator: torch.Generator | None = None, **draws: Any) -> dict[str, Tensor]:
        """Return "output", the logits, B, labels, and with targets, B, labels from 0 to 1, "loss"."""
        logits = read_logits(self.ask(batch))
        if "target" not in batch:
            return {"output": logits}
        return {"loss": self.loss_fn(logits, batch["target"]), "output": logits}

    def loss_fn(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over samples and labels."""
        logits, targets = upcast(logits), targets.to(upcast(logits).dtype)
        if self.options.loss == "bce":
            return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=self.positive_weights)
        absent = (1 - logits.sigmoid() + self.options.clip).clamp(max=1)  # ignores easy negatives
        there = targets * F.logsigmoid(logits) * (1 - logits.sigmoid()) ** self.options.gamma_pos
        weight = 1.0 if self.positive_weights is None else self.positive_weights
        missing = (1 - targets) * absent.clamp(min=1e-8).log() * (1 - absent) ** self.options.gamma_neg
        return -(weight * there + missing).mean()


def _positive_weights(loss: LossConfig, counts: Counts, *, labels: int) -> Tensor | None:
    if loss.class_weights == "none":
        return None
    if loss.class_weights == "balanced":
        if counts.outputs is None or counts.samples is None:
            raise ConfigError(
                "loss.class_weights = balanced needs the number of samples per label, which a stream does not provide"
            )
        there = counts.outputs
        return ((counts.samples - there).clamp(min=1) / there.clamp(min=1)).clamp(max=100).float()
    if len(loss.class_weights) != labels:
        raise ConfigError(f"loss.class_weights has {len(loss.class_weights)} numbers, the data has {labels} labels")
    return torch.tensor(loss.class_weights, dtype=torch.float32)
