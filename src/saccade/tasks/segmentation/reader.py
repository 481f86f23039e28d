"""Reader of segmentation datasets."""

import typing
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ...data.open import Data
from ...data.source import Stream
from ...data.spec import IMAGE, InputSpec, are_numbers, check_frame, check_longest, set_longest
from ...data.split import abbreviate
from ...data.table import Table
from ...data.targets import Targets
from ...settings import ModelConfig, fit_value
from ..reader import Reader
from . import layouts  # noqa: F401, it registers its reader
from .data import COLUMNS, LOOKED, MaskTargets, read_masks
from .losses import mask_loss
from .values import IGNORED

SCALES = 16  # most test scales in a file


@dataclass(frozen=True)
class SegmentOptions:
    """Options of `--task segment`."""

    loss: str = "ce"  # "ce", "focal", "ohem", "dice", or several joined by +
    aux: float = 0.4  # weight of the auxiliary FCN's loss, if the head has one
    crop: int | None = None  # side of training crops and sliding windows; default: the image size
    # range of the resize factor of training samples
    scale: list[float] = field(default_factory=lambda: [0.5, 2.0])
    uniform_scale: bool = False  # draw it uniformly, as the papers' code does; else log-uniformly
    # largest share of a class in a training crop, for which ten places are tried; the papers' code has 0.75
    cat_max_ratio: float = 1.0
    # a file with the meaning of mask values or colours, or names of the values from 0 on
    classes: str | list[str] | None = None
    ignore: int | None = IGNORED  # value of ignored pixels
    test: Literal["whole", "slide"] = "whole"  # inference on "whole" images, or with sliding windows ("slide")
    scales: list[float] = field(default_factory=lambda: [1.0])  # test scales
    flip: bool = False  # average with flipped images
    # resize images to a shorter side of the image size, and a longer side of at most this; default: fit into a square
    longest: int | None = None

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        mask_loss(self.loss)
        if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] <= 10:
            raise ValueError(f"scale={self.scale}; it must be two factors above 0 and at most 10, the smaller first")
        if not self.scales or not all(0 < scale <= 4 for scale in self.scales):
            raise ValueError(f"scales={self.scales}; they must be factors above 0 and at most 4")
        if not 0 < self.cat_max_ratio <= 1:
            raise ValueError(f"cat_max_ratio={self.cat_max_ratio}; it must be a share above 0 and at most 1")
        if self.longest is not None:
            check_longest(self.longest)
        if self.crop is not None and self.crop < 16:
            raise ValueError(f"crop={self.crop}; it must be a side in pixels, at least 16")
        if not 0 <= self.aux < 100:
            raise ValueError(f"aux={self.aux}; it must be a weight of zero or more")

    @property
    def asked(self) -> dict[str, Any]:
        """Options of inference that differ from the defaults, which trained models store."""
        usual = {"test": "whole", "scales": [1.0], "flip": False}
        return {name: getattr(self, name) for name, value in usual.items() if getattr(self, name) != value}

    @classmethod
    def of(cls, spec: InputSpec) -> "SegmentOptions":
        """Return the options of inference of a trained model's validation."""
        given, known = spec.extra.get("asked", {}), typing.get_type_hints(cls)
        if not isinstance(given, dict) or not given.keys() <= {"test", "scales", "flip"}:
            raise ValueError("extra.asked must give the inference options test, scales and flip")
        asked = {name: fit_value(value, known[name], name, source="extra.asked") for name, value in given.items()}
        if len(asked.get("scales", [])) > SCALES:
            raise ValueError(f"extra.asked has more than {SCALES} scales")
        return cls(crop=spec.extra.get("crop"), longest=spec.extra.get("longest"), **asked)


class SegmentationReader(Reader):
    """Reads masks."""

    read_by = ("classes", "ignore")

    def claims(self, table: Table) -> bool:
        """Whether a list has a column of masks."""
        return table.find(COLUMNS) is not None

    def read_table(self, table: Table) -> Targets:
        """Read the masks of a list."""
        return read_masks(table, given=self.options.classes, ignore=self.options.ignore)

    def complete_spec(self, spec: InputSpec, data: Data, model: ModelConfig) -> None:
        """Use letterboxing; store side and scale of crops, and class frequencies."""
        spec.extra |= {"fit": True, "frame": IMAGE, "crop": self.options.crop, "scale": list(self.options.scale)}
        spec.extra |= {"uniform_scale": True} if self.options.uniform_scale else {}
        spec.extra |= {"cat_max_ratio": self.options.cat_max_ratio} if self.options.cat_max_ratio < 1 else {}
        spec.extra |= {"asked": self.options.asked} if self.options.asked else {}
        spec.shorter = None
        set_longest(spec, self.options.longest)
        if isinstance(data.train, Stream) or not isinstance(data.train.targets, MaskTargets):
            return
        pixels = data.train.targets.pixels()
        spec.extra["pixels"] = [int(count) for count in pixels]
        _note_absent(spec, pixels, "training", len(data.train), "the model cannot learn it")
        if isinstance(data.val.targets, MaskTargets):
            found = np.where(pixels > 0, data.val.targets.pixels(), 1)
            _note_absent(spec, found, "validation", len(data.val), "it counts in no mean unless it is predicted")

    def check_spec(self, spec: InputSpec) -> None:
        """Refuse unknown frames, invalid pixel counts and options of inference."""
        check_frame(spec)
        SegmentOptions.of(spec)
        if "pixels" in spec.extra and not are_numbers(spec.extra["pixels"], len(spec.outputs)):
            raise ValueError("extra.pixels must be a list of numbers, one per class")

    def options_of(self, spec: InputSpec) -> SegmentOptions:
        """Return the options of inference of the model's validation."""
        return SegmentOptions.of(spec)


def _note_absent(spec: InputSpec, pixels: np.ndarray, part: str, samples: int, consequence: str) -> None:
    """Note classes without pixels."""
    absent = [name for name, count in zip(spec.outputs, pixels, strict=True) if not count]
    if absent:
        among = "" if samples <= LOOKED else f" (of {LOOKED} checked)"
        spec.notes.append(f"no pixel of the {part} masks{among} has the class {abbreviate(absent)}; {consequence}")
