"""The specification of a model's inputs and outputs, which is saved with its weights."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .framing import Framing

IMAGE = "image"  # the frame of answers and metrics: the original image


@dataclass
class InputSpec:
    """A model's inputs and outputs.

    Args:
        outputs: names of the outputs in order: classes, labels or columns of numbers.
        in_chans: channels of the images.
        img_size: side of the square images.
        mean: of each channel, 0 to 1.
        std: of each channel.
        shorter: length that the shorter side is resized to before the centre crop; None: no crop.
        task: name of the task.
        extra: what the task needs to decode outputs, as JSON: thresholds, the scale of numbers.
        notes: remarks for the log; not saved.
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
        """The outputs of a single-label task."""
        return self.outputs

    @property
    def own_frame(self) -> bool:
        """Whether answers and metrics are in the original images' pixels, not the square's as in earlier versions."""
        return self.framing.fit and self.extra.get("frame") == IMAGE

    @property
    def framing(self) -> Framing:
        """The deterministic framing of images."""
        fit = self.extra.get("fit") is True
        return Framing(self.img_size, shorter=self.shorter, channels=self.in_chans, fit=fit)

    def to_dict(self) -> dict[str, Any]:
        """Return the specification as JSON values."""
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
        """Return the specification without large entries, such as a tokenizer."""
        record = self.to_dict()
        return record | {"extra": {name: value for name, value in self.extra.items() if not isinstance(value, dict)}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "InputSpec":
        """Read the values of `to_dict`, or those of earlier versions, which had classes only."""
        return cls(
            **{name: values[name] for name in ("in_chans", "img_size", "mean", "std")},
            outputs=tuple(values["outputs"] if "outputs" in values else values["classes"]),
            shorter=values.get("shorter"),
            task=values.get("task", "classify"),
            extra=dict(values.get("extra", {})),
        )


def check_frame(spec: InputSpec) -> None:
    """Raise ValueError for a frame that this version does not know."""
    if (frame := spec.extra.get("frame", IMAGE)) != IMAGE:
        raise ValueError(f"extra.frame = {frame!r}; it must be {IMAGE!r}, or be left out")


def are_numbers(values: Any, count: int) -> bool:
    """Whether a value read from a file is a list of `count` finite numbers."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(isinstance(value, int | float) and math.isfinite(value) for value in values)
    )
