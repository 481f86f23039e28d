"""Regression."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data.feed import Batch
from ...data.spec import InputSpec
from ...data.targets import Counts
from ...layers.numerics import upcast
from ...settings import LossConfig
from ..classification.task import read_logits
from ..numbers import NumberMetrics
from ..registering import register_task
from ..task import Task
from .codec import RegressionCodec
from .presenter import RegressionPresenter
from .reader import RegressionReader
from .rules import RULES


@dataclass(frozen=True)
class RegressOptions:
    """Options of `--task regress`."""

    # "huber", "l1" or "mse", on standardised targets
    loss: Literal["huber", "l1", "mse"] = "huber"
    columns: list[str] | None = None  # target columns, if the list has other numbers


@register_task("regress")
class Regress(Task):
    """Regression of one or several numbers.

    Targets are standardised by mean and standard deviation in training; answers are in original units.

    Args:
        model: maps images to one number a column, or to an object with `logits`.
        options: the loss.
        mean: mean of each column in training.
        std: standard deviation of each column in training.
    """

    reader, codec, metrics, presenter = RegressionReader, RegressionCodec, NumberMetrics, RegressionPresenter
    Options = RegressOptions
    asked_by = ("loss",)
    rules = RULES

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        model: nn.Module,
        *,
        options: RegressOptions | None = None,
        mean: Tensor | None = None,
        std: Tensor | None = None,
    ) -> None:
        super().__init__(model, options=options)
        self.register_buffer("mean", torch.zeros(1) if mean is None else mean, persistent=False)
        self.register_buffer("std", torch.ones(1) if std is None else std, persistent=False)

    @classmethod
    def arguments(cls, spec: InputSpec, options: Any, loss: LossConfig | None, counts: Counts) -> dict[str, Any]:
        """Return the options and the targets' mean and standard deviation."""
        return {"options": options, **{name: torch.tensor(spec.extra[name]) for name in ("mean", "std")}}

    def loss(self, batch: Batch, *, generator: torch.Generator | None = None, **draws: Any) -> dict[str, Tensor]:
        """Return "output", standardised numbers, B, columns, and with targets (in original units) "loss"."""
        output = read_logits(self.ask(batch))
        if "target" not in batch:
            return {"output": output}
        return {"loss": self.loss_fn(output, batch["target"]).mean(), "output": output}

    def loss_fn(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample, B."""
        output = upcast(output)
        wanted = (targets.to(output.dtype) - self.mean) / self.std
        losses = {"mse": F.mse_loss, "l1": F.l1_loss, "huber": F.smooth_l1_loss}
        return losses[self.options.loss](output, wanted, reduction="none").mean(1)

    def read(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the raw output, the numbers in original units, and with targets the loss of each sample."""
        found = {"output": output, "value": output * self.std + self.mean}
        return found | ({"loss": self.loss_fn(output, batch["target"])} if "target" in batch else {})
