"""Masks that a list or folder names, and what the spec keeps of them."""

import typing
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ...data.open import Data
from ...data.source import Stream
from ...data.spec import InputSpec, are_numbers
from ...data.split import abbreviate
from ...data.table import Table
from ...data.targets import Targets
from ...settings import ModelConfig, fit_value
from ..reader import Reader
from . import layouts  # noqa: F401, it registers its reader
from .data import COLUMNS, LOOKED, MaskTargets, read_masks
from .losses import mask_loss
from .values import IGNORED

SCALES = 16  # that a file may ask to be asked at


@dataclass(frozen=True)
class SegmentOptions:
    """Options of `--task segment`."""

    loss: str = "ce"  # "ce", "focal", "ohem", "dice", or several joined by +
    aux: float = 0.4  # weight of the FCN head's loss, where the head has one
    crop: int | None = None  # side of training crops and of sliding windows; that of the images if not given
    # smallest and largest factor that training samples are enlarged by
    scale: list[float] = field(default_factory=lambda: [0.5, 2.0])
    # a file that says what values or colours of masks mean, or the names of the values from 0 on
    classes: str | list[str] | None = None
    ignore: int | None = IGNORED  # value of pixels that count nowhere
    test: Literal["whole", "slide"] = "whole"  # ask about "whole" images, or by windows that "slide"
    scales: list[float] = field(default_factory=lambda: [1.0])  # that images are asked about at
    flip: bool = False  # ask about mirrored images as well

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        mask_loss(self.loss)
        if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] <= 10:
            raise ValueError(f"scale={self.scale}; it is two factors above 0 and at most 10, the smaller one first")
        if not self.scales or not all(0 < scale <= 4 for scale in self.scales):
            raise ValueError(f"scales={self.scales}; they are factors above 0 and at most 4")
        if self.crop is not None and self.crop < 16:
            raise ValueError(f"crop={self.crop}; it is a side in pixels, at least 16")
        if not 0 <= self.aux < 100:
            raise ValueError(f"aux={self.aux}; it is a weight, zero or more")

    @property
    def asked(self) -> dict[str, Any]:
        """How a model is asked, of which a trained one keeps what is not the default."""
        usual = {"test": "whole", "scales": [1.0], "flip": False}
        return {name: getattr(self, name) for name, value in usual.items() if getattr(self, name) != value}

    @classmethod
    def of(cls, spec: InputSpec) -> "SegmentOptions":
        """Return options by which a trained model is asked as in its validation."""
        given, known = spec.extra.get("asked", {}), typing.get_type_hints(cls)
        if not isinstance(given, dict) or not given.keys() <= {"test", "scales", "flip"}:
            raise ValueError("extra.asked says by test, scales and flip how the model is asked")
        asked = {name: fit_value(value, known[name], name, source="extra.asked") for name, value in given.items()}
        if len(asked.get("scales", [])) > SCALES:
            raise ValueError(f"extra.asked has more than {SCALES} scales")
        return cls(crop=spec.extra.get("crop"), **asked)


class SegmentationReader(Reader):
    """Reads masks."""

    read_by = ("classes", "ignore")

    def claims(self, table: Table) -> bool:
        """Tell whether a list has a column of masks."""
        return table.find(COLUMNS) is not None

    def read_table(self, table: Table) -> Targets:
        """Return the masks that a list names."""
        return read_masks(table, given=self.options.classes, ignore=self.options.ignore)

    def complete_spec(self, spec: InputSpec, data: Data, model: ModelConfig) -> None:
        """Show images as a whole; keep side and scale of crops, and how frequent each class is in training masks."""
        spec.extra |= {"fit": True, "crop": self.options.crop, "scale": list(self.options.scale)}
        spec.extra |= {"asked": self.options.asked} if self.options.asked else {}
        spec.shorter = None
        if isinstance(data.train, Stream) or not isinstance(data.train.targets, MaskTargets):
            return
        pixels = data.train.targets.pixels()
        spec.extra["pixels"] = [int(count) for count in pixels]
        _note_absent(spec, pixels, "training", len(data.train), "nothing is learned of it")
        if isinstance(data.val.targets, MaskTargets):
            found = np.where(pixels > 0, data.val.targets.pixels(), 1)
            _note_absent(spec, found, "validation", len(data.val), "it counts in no mean unless it is answered")

    def check_spec(self, spec: InputSpec) -> None:
        """Refuse counts of pixels that are none, and ways of asking that there are not."""
        SegmentOptions.of(spec)
        if "pixels" in spec.extra and not are_numbers(spec.extra["pixels"], len(spec.outputs)):
            raise ValueError("extra.pixels is a list of numbers, one a class")

    def options_of(self, spec: InputSpec) -> SegmentOptions:
        """Return how the model was asked in its validation."""
        return SegmentOptions.of(spec)


def _note_absent(spec: InputSpec, pixels: np.ndarray, part: str, samples: int, so: str) -> None:
    """Tell of classes without a pixel."""
    absent = [name for name, count in zip(spec.outputs, pixels, strict=True) if not count]
    if absent:
        among = "" if samples <= LOOKED else f" of {LOOKED} that were looked at"
        spec.notes.append(f"no pixel of the {part} masks{among} is of {abbreviate(absent)}; {so}")
