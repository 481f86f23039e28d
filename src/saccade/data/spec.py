"""What the data asks of a model, and what a trained model asks of its data: written with its weights."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .framing import Framing


@dataclass
class InputSpec:
    """What goes into a model and what comes out of it.

    Args:
        outputs: names of what it answers with, in their order: classes, labels, columns of numbers.
        in_chans: channels of the images.
        img_size: side of the square images.
        mean: of each channel, 0 to 1.
        std: of each channel.
        shorter: what an image's shorter side is brought to before its middle is taken; None takes all of it.
        task: name of the task it answers.
        extra: what the task needs besides to read the answers, as JSON holds it: thresholds, the scale of numbers.
        notes: remarks for the log; not written.
    """

    outputs: tuple[str, ...]
    in_chans: int
    img_size: int
    mean: list[float]
    std: list[float]
    shorter: int | None = None
    task: str = "classify"
    extra: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def classes(self) -> tuple[str, ...]:
        """The outputs, of a task whose samples have one class each."""
        return self.outputs

    @property
    def framing(self) -> Framing:
        """How an image of any size becomes one of these, without chance."""
        fit = self.extra.get("fit") is True
        return Framing(self.img_size, shorter=self.shorter, channels=self.in_chans, fit=fit)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {
            "task": self.task,
            "outputs": list(self.outputs),
            "in_chans": self.in_chans,
            "img_size": self.img_size,
            "mean": list(self.mean),
            "std": list(self.std),
            "shorter": self.shorter,
            "extra": self.extra,
        }

    def brief(self) -> dict[str, Any]:
        """Return it without what only building and asking a model needs, such as a tokenizer."""
        record = self.to_dict()
        return record | {"extra": {name: value for name, value in self.extra.items() if not isinstance(value, dict)}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "InputSpec":
        """Read what `to_dict` wrote, or an earlier version, which knew classes alone."""
        return cls(
            **{name: values[name] for name in ("in_chans", "img_size", "mean", "std")},
            outputs=tuple(values["outputs"] if "outputs" in values else values["classes"]),
            shorter=values.get("shorter"),
            task=values.get("task", "classify"),
            extra=dict(values.get("extra", {})),
        )


def are_numbers(values: Any, count: int) -> bool:
    """Tell whether something read from a file is a list of so many finite numbers."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(isinstance(value, int | float) and math.isfinite(value) for value in values)
    )
