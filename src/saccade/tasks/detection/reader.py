"""Reader of detection datasets."""

from dataclasses import dataclass, field
from typing import Any

from ...data.open import Data
from ...data.source import Stream
from ...data.spec import IMAGE, InputSpec, check_frame, check_longest, set_longest
from ...settings import DataConfig, ModelConfig
from ..reader import Reader
from .anchors import FINEST, halvings_for
from .codec import answer_filter
from .data import BoxTargets
from .hosts import DEFAULT_HEAD
from .layouts import require_layout


@dataclass(frozen=True)
class DetectOptions:
    """Options of `--task detect`.

    Args:
        scale: range of the factor by which training samples are resized (large-scale jitter).
        uniform_scale: draw the factor uniformly, as the papers' code does; else log-uniformly.
        least: score threshold.
        overlap: IoU threshold of non-maximum suppression; default: the head's own.
        kept: most objects per image.
        longest: resize images to a shorter side of the image size, and a longer side of at most this; default: fit
            them into a square.
    """

    scale: list[float] = field(default_factory=lambda: [0.6, 1.6])
    uniform_scale: bool = False
    least: float = 0.05
    overlap: float | None = None
    kept: int = 100
    longest: int | None = None

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] <= 10:
            raise ValueError(f"scale={self.scale}; it must be two factors above 0 and at most 10, the smaller first")
        if self.longest is not None:
            check_longest(self.longest)
        if not 0 <= self.least < 1:
            raise ValueError(f"least={self.least}; it must be a score from 0 to 1")
        if self.overlap is not None and not 0 < self.overlap <= 1:
            raise ValueError(f"overlap={self.overlap}; it must be above 0 and at most 1")
        if not 1 <= self.kept <= 10_000:
            raise ValueError(f"kept={self.kept}; it must be a number of predictions from 1 to 10000")


class DetectionReader(Reader):
    """Reads objects."""

    def open(self, config: DataConfig) -> Data:
        """Open the dataset of the settings, or raise an error that describes the layouts."""
        for spec in (config.path, config.val):
            require_layout(spec or "")
        return super().open(config)

    def complete_spec(self, spec: InputSpec, data: Data, model: ModelConfig) -> None:
        """Use letterboxing; store whether there are masks, the scale of crops and the thresholds."""
        spec.extra |= {"fit": True, "frame": IMAGE}
        spec.shorter = None
        set_longest(spec, self.options.longest)
        targets = None if isinstance(data.train, Stream) else data.train.targets
        spec.extra["masks"] = isinstance(targets, BoxTargets) and targets.regions is not None
        side = targets.small_side(spec.img_size, self.options.longest) if isinstance(targets, BoxTargets) else None
        _fit_anchors(spec, side, model.head or DEFAULT_HEAD)
        spec.extra |= {"uniform_scale": True} if self.options.uniform_scale else {}
        spec.extra |= {"scale": list(self.options.scale)} | filter_options(self.options)

    def check_spec(self, spec: InputSpec) -> None:
        """Refuse unknown frames, and invalid thresholds."""
        check_frame(spec)
        for name, low, high in (("overlap", 0.0, 1.0), ("least", 0.0, 1.0), ("kept", 1, 10_000), ("halvings", 0, 10)):
            value = spec.extra.get(name)
            if value is not None and not (type(value) in (int, float) and low <= value <= high):
                raise ValueError(f"extra.{name} must be a number from {low:g} to {high:g}")

    def options_of(self, spec: InputSpec) -> DetectOptions:
        """Return a trained detector's thresholds."""
        return DetectOptions(**answer_filter(spec), longest=spec.extra.get("longest"))


def filter_options(options: DetectOptions) -> dict[str, Any]:
    """Return the options that a spec stores: the thresholds."""
    overlap = {} if options.overlap is None else {"overlap": options.overlap}
    return {"least": options.least, "kept": options.kept} | overlap


def _fit_anchors(spec: InputSpec, side: float | None, head: str) -> None:
    """Store how often anchors are halved for small objects, unless the head has an option for it."""
    times = halvings_for(side)
    if times and "anchor=" not in head and head.split(":")[0] in ("retinanet", "mask_rcnn", "cascade"):
        spec.extra["halvings"] = times
        spec.notes.append(
            f"small objects have a side of about {side:.0f} pixels: anchors start at {FINEST / 2**times:.0f} pixels "
            f"instead of {FINEST:.0f}; override with --set model.head=NAME:anchor=..."
        )
