"""The specification of a model's inputs and outputs, which is saved with its weights."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .framing import Framing
from .sides import SideFraming

LONGEST = 8192  # most pixels of a longest side
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
        """Whether answers and metrics are in the original images' pixels, not the square's as in earlier versions.

        Earlier versions had no longest side, so those of a run that is tested with one are in the images' pixels.
        """
        return self.framing.fit and (self.extra.get("frame") == IMAGE or bool(self.extra.get("longest")))

    @property
    def framing(self) -> Framing:
        """The deterministic framing of images."""
        fit = self.extra.get("fit") is True
        if fit and (longest := self.extra.get("longest")):
            return SideFraming(self.img_size, channels=self.in_chans, longest=longest)
        return Framing(self.img_size, shorter=self.shorter, channels=self.in_chans, fit=fit)

    def in_square(self) -> "InputSpec":
        """Return the specification with images letterboxed into squares, for what takes images of one shape only."""
        return replace(self, extra={name: value for name, value in self.extra.items() if name != "longest"})

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
    """Raise ValueError for a frame that this version does not know, or an invalid longest side."""
    if (longest := spec.extra.get("longest")) is not None:
        check_longest(longest)
        if longest < spec.img_size:
            raise ValueError(
                f"longest={longest} is less than the image size {spec.img_size}, which the shorter side is resized to; "
                "give a larger one, or a smaller --img-size"
            )
    if (frame := spec.extra.get("frame", IMAGE)) != IMAGE:
        raise ValueError(f"extra.frame = {frame!r}; it must be {IMAGE!r}, or be left out")


def set_longest(spec: InputSpec, longest: int | None) -> None:
    """Store the longest side of a task's options, or letterbox images into squares."""
    if longest is None:
        spec.extra.pop("longest", None)
    else:
        spec.extra["longest"] = longest
        check_frame(spec)


def check_longest(longest: Any) -> None:
    """Raise ValueError for an invalid longest side."""
    if type(longest) is not int or not 16 <= longest <= LONGEST:
        raise ValueError(f"longest={longest!r}; it must be a side in pixels, from 16 to {LONGEST}")


def are_numbers(values: Any, count: int) -> bool:
    """Whether a value read from a file is a list of `count` finite numbers."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(isinstance(value, int | float) and math.isfinite(value) for value in values)
    )
