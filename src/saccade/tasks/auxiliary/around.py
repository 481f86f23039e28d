"""A task around another one: it adds to the loss, and leaves data, answers and numbers to the one inside."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...data.feed import Batch
from ...data.framing import Encoder
from ...data.spec import InputSpec
from ..metric import Metrics
from ..task import Task


class Around(Task):
    """Hands everything but the loss to the task inside."""

    def __init__(self, base: Task) -> None:
        super().__init__()
        self.base = base
        self.primary, self.running = base.primary, base.running  # type: ignore[misc]

    @property
    def model(self) -> nn.Module:  # type: ignore[override]
        """What is trained."""
        return self.base.model

    @property
    def spec(self) -> InputSpec | None:  # type: ignore[override]
        """What goes in and comes out."""
        return self.base.spec

    def ask(self, batch: Batch) -> Any:
        """Ask as the task inside does."""
        return self.base.ask(batch)

    def draw(
        self, batch_size: int, *, device: torch.device | str, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Draw what one step of the task inside needs."""
        return self.base.draw(batch_size, device=device, generator=generator)

    def read_along(self, encode: Encoder) -> Encoder:
        """Read what the task inside needs."""
        return self.base.read_along(encode)

    def set_epoch(self, epoch: float, total_epochs: int) -> None:
        """Tell the task inside how far training is."""
        self.base.set_epoch(epoch, total_epochs)

    def follow(self, result: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, ...]:
        """Count as the task inside does."""
        return self.base.follow(result, batch)

    def weight_of(self, batch: Batch) -> Tensor | None:
        """Weigh as the task inside does."""
        return self.base.weight_of(batch)

    def reweigh(self, result: dict[str, Tensor], batch: Batch, mean: Tensor | None) -> dict[str, Tensor]:
        """Weigh as the task inside does."""
        return self.base.reweigh(result, batch, mean)

    def read(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Read answers as the task inside does."""
        return self.base.read(output, batch)

    def metrics(self) -> Metrics:
        """Measure as the task inside does."""
        return self.base.metrics()

    def settle(self, metrics: Metrics) -> None:
        """Finish as the task inside does."""
        self.base.settle(metrics)
