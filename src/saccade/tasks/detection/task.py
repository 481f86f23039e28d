"""Objects in images: their boxes, classes and masks."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...config import ConfigError, DataConfig, LossConfig, ModelConfig, TrainConfig, leave_out
from ...data.feed import Batch
from ...data.open import Data
from ...data.source import Stream
from ...data.spec import InputSpec
from ..hosting import HostingTask, host_settings
from ..metric import Metrics, MetricSpec
from ..registering import register_task
from ..segmentation.pyramid import any_size_options
from ..task import Task
from .anchors import FINEST, halvings_for
from .boxes import areas, clip
from .codec import DetectionCodec, standing
from .data import BoxTargets
from .detector import CELLS, Detector, read_answers, waits_for_device
from .errors import ShownMetrics
from .hosted import HostedDetector
from .layouts import require_layout
from .metrics import metric_specs
from .objects import Objects, unpack_masks
from .presenter import DetectionPresenter

DEFAULT_HEAD = "mask_rcnn"
VISIBLE = 0.1  # part of a box that a crop shows, below which the object is left out


@dataclass(frozen=True)
class DetectOptions:
    """Options of `--task detect`.

    Args:
        scale: smallest and largest factor that training samples are enlarged by (large-scale jitter).
        least: score from which answers count.
        overlap: of answers of one class at which the better one alone stays; the head's own if not given.
        kept: answers of an image.
    """

    scale: list[float] = field(default_factory=lambda: [0.6, 1.6])
    least: float = 0.05
    overlap: float | None = None
    kept: int = 100

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] <= 10:
            raise ValueError(f"scale={self.scale}; it is two factors above 0 and at most 10, the smaller one first")
        if not 0 <= self.least < 1:
            raise ValueError(f"least={self.least}; it is a score from 0 to 1")
        if self.overlap is not None and not 0 < self.overlap <= 1:
            raise ValueError(f"overlap={self.overlap}; it is above 0 and at most 1")
        if not 1 <= self.kept <= 10_000:
            raise ValueError(f"kept={self.kept}; it is a number of answers from 1 to 10000")


@register_task("detect")
class Detect(HostingTask):
    """A model that finds objects.

    Args:
        model: a detector.
        options: how it is trained and asked.
    """

    primary = "ap"
    running = ()
    codec = DetectionCodec
    Options = DetectOptions
    recipe, finetuning, largest = "detect", "detect_finetune", 512
    presenter = DetectionPresenter
    asked_by = ("least", "overlap", "kept")
    host_kind, host = "OBJECT_DETECTION", HostedDetector

    # From data to a batch

    @classmethod
    def open(cls, config: DataConfig, options: Any) -> Data:
        """Open the samples that settings name, or say how they are to be laid out."""
        for spec in (config.path, config.val):
            require_layout(spec or "")
        return super().open(config, options)

    @classmethod
    def adapt(cls, config: TrainConfig) -> tuple[TrainConfig, list[str]]:
        """Leave out what is made for one class an image; crops are the task's own."""
        config = replace(config, augment=replace(config.augment, crop="none"))
        head = config.model.head or DEFAULT_HEAD
        engine = replace(config.engine, graphs=False) if waits_for_device(head) else config.engine
        config = host_settings(config) or replace(config, model=replace(config.model, head=head), engine=engine)
        return leave_out(config, ("mixup", "cutmix", "erase"), "every object has a class of its own")

    @classmethod
    def complete_spec(cls, spec: InputSpec, data: Data, options: Any, model: ModelConfig) -> None:
        """Show images as a whole; keep whether objects have masks, the scale of crops and which answers stand."""
        spec.extra["fit"], spec.shorter = True, None
        targets = None if isinstance(data.train, Stream) else data.train.targets
        spec.extra["masks"] = isinstance(targets, BoxTargets) and targets.regions is not None
        side = targets.small_side(spec.img_size) if isinstance(targets, BoxTargets) else None
        _fit_anchors(spec, side, model.head or DEFAULT_HEAD)
        spec.extra |= {"scale": list(options.scale)} | _stands_by(options)
        super().complete_spec(spec, data, options, model)

    @classmethod
    def check_spec(cls, spec: InputSpec) -> None:
        """Refuse numbers by which no answers stand, and a model that cannot be built."""
        super().check_spec(spec)
        for name, low, high in (("overlap", 0.0, 1.0), ("least", 0.0, 1.0), ("kept", 1, 10_000), ("halvings", 0, 10)):
            value = spec.extra.get(name)
            if value is not None and not (type(value) in (int, float) and low <= value <= high):
                raise ValueError(f"extra.{name} is a number from {low:g} to {high:g}")

    @classmethod
    def primary_of(cls, spec: InputSpec) -> str:
        """Return average precision, of masks where there are some."""
        return "mask_ap" if spec.extra.get("masks") else "ap"

    # In training

    @classmethod
    def model_options(cls, name: str, spec: InputSpec) -> dict[str, Any]:
        """Let the backbone take images of any size."""
        return any_size_options(name)

    @classmethod
    def add_head(cls, model: nn.Module, config: ModelConfig, spec: InputSpec) -> nn.Module:
        """Return a detector of a backbone; a model of Hugging Face is one already."""
        if isinstance(model, HostedDetector):
            spec.extra.setdefault("overlap", model.overlap)
            spec.extra["masks"] = False
            return model
        if config.probe:
            raise ConfigError(
                "model.probe was asked for; it is for classifiers: a detector's head is trained as a whole"
            )
        masks = bool(spec.extra.get("masks"))
        made = Detector(model, config.head or DEFAULT_HEAD, num_classes=len(spec.outputs), masks=masks)
        spec.extra.setdefault("overlap", made.head.overlap)
        made.head.kept = max(made.head.kept, int(spec.extra.get("kept", 0)))
        spec.extra["masks"] = made.head.mask_side > 0
        made.head.halve_anchors(int(spec.extra.get("halvings", 0)))
        return made

    @classmethod
    def options_of(cls, spec: InputSpec) -> DetectOptions:
        """Return which answers of a trained detector stand."""
        return DetectOptions(**standing(spec))

    @classmethod
    def build(
        cls,
        model: nn.Module,
        spec: InputSpec,
        *,
        options: Any = None,
        loss: LossConfig | None = None,
        counts: Tensor | None = None,
        total: int | None = None,
    ) -> Task:
        """Return the task, by whose options answers stand; those of the spec if none are given."""
        if options is not None:
            spec.extra |= _stands_by(options)
            head: Any = getattr(model, "head", None)
            if hasattr(head, "kept"):
                head.kept = max(head.kept, options.kept)
        return super().build(model, spec, options=options, loss=loss, counts=counts, total=total)

    def draw(
        self, batch_size: int, *, device: torch.device | str, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Draw the seeds of what is drawn by lot, one for each image."""
        return {"seeds": torch.randint(0, 2**31, (batch_size,), device=device, generator=generator)}

    def loss(self, batch: Batch, *, generator: torch.Generator | None = None, **draws: Any) -> dict[str, Tensor]:
        """Find the objects.

        Args:
            batch: `image`, B, C, H, W; `boxes`, B, N, 4; `labels`, B, N; `crowd`, B, N; and perhaps `mask`, B, L, H, W.
            generator: of what is drawn by lot.
            draws: `seeds`, instead of a generator.

        Returns:
            "output", and with objects "loss" and its parts.
        """
        images = batch["image"]
        if "labels" not in batch:
            return {"output": self.ask(batch)}
        if not draws:
            draws = self.draw(len(images), device=images.device, generator=generator)
        model: Any = self.model
        parts = model.losses(images, self.objects(batch), draws["seeds"])
        total = torch.stack(list(parts.values())).sum()
        return {"output": images.new_zeros(len(images), 0, CELLS), "loss": total} | {
            name: value.detach() for name, value in parts.items()
        }

    def objects(self, batch: Batch) -> Objects:
        """Return what is in a batch's images, as far as they show it."""
        size = (batch["image"].shape[-2], batch["image"].shape[-1])
        if batch["labels"].device.type == "cpu":  # as many rows as the fullest image of the batch: each may be a mask
            most = max(int((batch["labels"] >= 0).sum(1).max()), 1)
            batch = batch | {name: batch[name][:, :most] for name in ("boxes", "labels", "crowd")}
        whole = batch["boxes"].float()
        boxes = clip(whole, size)
        seen = areas(boxes) >= VISIBLE * areas(whole).clamp(min=1e-6)
        large = ((boxes[..., 2:] - boxes[..., :2]) >= 1).all(-1)
        labels = torch.where(seen & large, batch["labels"], -1)
        masks = None
        if "mask" in batch and self.spec is not None and self.spec.extra.get("masks"):
            numbers = torch.arange(1, labels.shape[1] + 1, device=labels.device, dtype=batch["mask"].dtype)
            masks = unpack_masks(batch["mask"], numbers)
        return Objects(boxes, labels, batch["crowd"].bool(), masks)

    # Of answers

    @classmethod
    def metric_specs(cls, spec: InputSpec) -> tuple[MetricSpec, ...]:
        """Return average precision and what else is measured."""
        return metric_specs(spec.outputs, masks=bool(spec.extra.get("masks")))

    def metrics(self) -> Metrics:
        """Return what collects objects found and missed."""
        assert self.spec is not None
        return ShownMetrics(
            self.metric_specs(self.spec), masks=bool(self.spec.extra.get("masks")), side=self.spec.img_size
        )

    def read(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the answers that stand: `boxes`, `scores`, `labels` and perhaps `masks`, best first."""
        assert self.spec is not None
        found = read_answers(output, **standing(self.spec))
        kept = {"output": output, "boxes": found.boxes, "scores": found.scores, "labels": found.labels}
        return kept if found.masks is None else kept | {"masks": found.masks}

    # For people


def _stands_by(options: DetectOptions) -> dict[str, Any]:
    """Return what a spec keeps of the options: which answers stand."""
    overlap = {} if options.overlap is None else {"overlap": options.overlap}
    return {"least": options.least, "kept": options.kept} | overlap


def _fit_anchors(spec: InputSpec, side: float | None, head: str) -> None:
    """Keep how often anchors are halved for small objects of a side in pixels, unless the head says what they are."""
    times = halvings_for(side)
    if times and "anchor=" not in head and head.split(":")[0] in ("retinanet", "mask_rcnn", "cascade"):
        spec.extra["halvings"] = times
        spec.notes.append(
            f"small objects have a side of about {side:.0f} pixels: anchors begin at {FINEST / 2**times:.0f} pixels "
            f"instead of {FINEST:.0f}; --set model.head=NAME:anchor=... sets your own"
        )
