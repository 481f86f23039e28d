"""A task around another one: it adds to the loss, and leaves data, answers and numbers to the one inside."""

from typing import Any

from torch import nn

from ...data.spec import InputSpec
from ..task import Task


def _inside(name: str) -> Any:
    """Return a method that hands a call to the task inside."""

    def call(self: "Around", *given: Any, **named: Any) -> Any:
        return getattr(self.base, name)(*given, **named)

    return call


class Around(Task):
    """Hands everything but the loss to the task inside."""

    def __init__(self, base: Task) -> None:
        super().__init__()
        self.base = base
        self.primary, self.running = base.primary, base.running  # type: ignore[misc]
        self.codec, self.metrics = base.codec, base.metrics  # type: ignore[misc]

    @property
    def model(self) -> nn.Module:  # type: ignore[override]
        """What is trained."""
        return self.base.model

    @property
    def spec(self) -> InputSpec | None:  # type: ignore[override]
        """What goes in and comes out."""
        return self.base.spec

    # What is drawn, read, weighed and answered is so by the task inside.
    draw, read_along, set_epoch = (_inside(name) for name in ("draw", "read_along", "set_epoch"))
    follow, weight_of, reweigh = (_inside(name) for name in ("follow", "weight_of", "reweigh"))
    answer, read, learns_from = (_inside(name) for name in ("answer", "read", "learns_from"))
