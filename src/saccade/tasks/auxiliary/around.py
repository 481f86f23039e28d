"""Wrapper around a task that only changes its loss."""

from typing import Any

from torch import nn

from ...data.spec import InputSpec
from ..task import Task


def _inside(name: str) -> Any:
    """Return a method that delegates to the wrapped task."""

    def call(self: "Around", *given: Any, **named: Any) -> Any:
        return getattr(self.base, name)(*given, **named)

    return call


class Around(Task):
    """Delegates everything except the loss to the wrapped task."""

    def __init__(self, base: Task) -> None:
        super().__init__()
        self.base = base
        self.primary, self.running = base.primary, base.running  # type: ignore[misc]
        self.codec, self.metrics = base.codec, base.metrics  # type: ignore[misc]

    @property
    def model(self) -> nn.Module:  # type: ignore[override]
        """The trained model."""
        return self.base.model

    @property
    def spec(self) -> InputSpec | None:  # type: ignore[override]
        """The model's inputs and outputs."""
        return self.base.spec

    # The other methods are delegated.
    draw, read_along, set_epoch = (_inside(name) for name in ("draw", "read_along", "set_epoch"))
    follow, weight_of, reweigh = (_inside(name) for name in ("follow", "weight_of", "reweigh"))
    answer, read, learns_from = (_inside(name) for name in ("answer", "read", "learns_from"))
