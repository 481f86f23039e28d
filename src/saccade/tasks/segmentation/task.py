"""A class for every pixel."""

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ...config import ConfigError, LossConfig, ModelConfig, TrainConfig, fit_value, leave_out
from ...data.feed import Batch
from ...data.geometry import OUTSIDE
from ...data.open import Data
from ...data.source import Stream
from ...data.spec import InputSpec, are_numbers
from ...data.split import abbreviate
from ...data.table import Table
from ...data.targets import Counts, Targets
from ..classification.task import weigh_classes
from ..hosting import HostingTask, host_settings
from ..metric import Metrics, MetricSpec
from ..registering import register_task
from . import layouts  # noqa: F401, it registers its reader
from .codec import SegmentationCodec
from .data import COLUMNS, LOOKED, MaskTargets, read_masks
from .heads import Answers, Segmenter
from .hosted import HostedSegmenter
from .losses import Loss, mask_loss, pixel_losses, pixel_weights
from .metrics import SegmentationMetrics, metric_specs, small_masks
from .presenter import SegmentationPresenter
from .pyramid import any_size_options, fixed_side
from .testing import answer_scales, answer_sliding
from .values import IGNORED

DEFAULT_HEAD = "upernet"
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


@register_task("segment")
class Segment(HostingTask):
    """A model that tells the class of every pixel.

    Args:
        model: maps images to logits, B, K, H, W; in training perhaps to `Answers`, with those of an auxiliary head.
        options: the loss, and how the model is asked.
        class_weights: how much the pixels of each class count, K.
        keep_masks: keep small masks of the answers that are measured, for a page.
    """

    primary = "miou"
    running = ("aacc",)
    codec = SegmentationCodec
    Options = SegmentOptions
    asked_by, read_by = ("crop", "test", "scales", "flip"), ("classes", "ignore")
    presenter = SegmentationPresenter
    recipe = "segment"
    host_kind, host = "UNIVERSAL_SEGMENTATION", HostedSegmenter

    class_weights: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        *,
        options: SegmentOptions | None = None,
        class_weights: Tensor | None = None,
        keep_masks: bool = False,
    ) -> None:
        super().__init__(model, options=options)
        self.keep_masks = keep_masks
        self.compare: Loss = mask_loss(self.options.loss)
        self.register_buffer("class_weights", class_weights, persistent=False)

    # From data to a batch

    @classmethod
    def claims(cls, table: Table) -> bool:
        """Tell whether a list has a column of masks."""
        return table.find(COLUMNS) is not None

    @classmethod
    def read_table(cls, table: Table, options: Any) -> Targets:
        """Return the masks that a list names."""
        return read_masks(table, given=options.classes, ignore=options.ignore)

    @classmethod
    def adapt(cls, config: TrainConfig) -> tuple[TrainConfig, list[str]]:
        """Leave out what is made for one class an image; crops are the task's own."""
        model = replace(config.model, head=config.model.head or DEFAULT_HEAD)
        config = replace(config, augment=replace(config.augment, crop="none"))
        config = host_settings(config) or replace(config, model=model)
        return leave_out(config, ("mixup", "cutmix", "erase"), "every pixel has a class of its own")

    @classmethod
    def complete_spec(cls, spec: InputSpec, data: Data, options: Any, model: ModelConfig) -> None:
        """Show images as a whole; keep side and scale of crops, and how frequent each class is in training masks."""
        spec.extra |= {"fit": True, "crop": options.crop, "scale": list(options.scale)}
        spec.extra |= {"asked": options.asked} if options.asked else {}
        spec.shorter = None
        super().complete_spec(spec, data, options, model)
        if isinstance(data.train, Stream) or not isinstance(data.train.targets, MaskTargets):
            return
        pixels = data.train.targets.pixels()
        spec.extra["pixels"] = [int(count) for count in pixels]
        _note_absent(spec, pixels, "training", len(data.train), "nothing is learned of it")
        if isinstance(data.val.targets, MaskTargets):
            found = np.where(pixels > 0, data.val.targets.pixels(), 1)
            _note_absent(spec, found, "validation", len(data.val), "it counts in no mean unless it is answered")

    @classmethod
    def check_spec(cls, spec: InputSpec) -> None:
        """Refuse counts of pixels that are none, and ways of asking that there are not."""
        super().check_spec(spec)
        SegmentOptions.of(spec)
        if "pixels" in spec.extra and not are_numbers(spec.extra["pixels"], len(spec.outputs)):
            raise ValueError("extra.pixels is a list of numbers, one a class")

    # In training

    @classmethod
    def model_options(cls, name: str, spec: InputSpec) -> dict[str, Any]:
        """Let the backbone take images of any size, or be made for one that its strides divide."""
        side = fixed_side(name, spec.img_size)
        return any_size_options(name) if side is None else {"img_size": side}

    @classmethod
    def add_head(cls, model: nn.Module, config: ModelConfig, spec: InputSpec) -> nn.Module:
        """Return a segmenter of a backbone; a model of Hugging Face is one already."""
        if isinstance(model, HostedSegmenter):
            return model
        if config.probe:
            raise ConfigError(
                "model.probe was asked for; it is for classifiers: a segmenter's head is trained as a whole"
            )
        name = (getattr(model, "pretrained_cfg", None) or {}).get("architecture", "")
        side = fixed_side(name, spec.img_size) if name else None
        side = side and config.options.get("img_size", side)
        made = Segmenter(model, config.head or DEFAULT_HEAD, num_classes=len(spec.outputs), side=side)
        if side is not None:
            _try_once(made, torch.zeros(1, spec.in_chans, side, side), name)
        return made

    @classmethod
    def options_of(cls, spec: InputSpec) -> SegmentOptions:
        """Return how the model was asked in its validation."""
        return SegmentOptions.of(spec)

    @classmethod
    def arguments(cls, spec: InputSpec, options: Any, loss: LossConfig | None, counts: Counts) -> dict[str, Any]:
        """Return the options and the classes' weights, balanced ones by the pixels of each class."""
        weights = None if loss is None else _class_weights(loss, spec)
        options = cls.options_of(spec) if options is None else options
        return {"options": options, "class_weights": weights, "keep_masks": loss is not None}  # a run's page shows some

    def loss(self, batch: Batch, *, generator: torch.Generator | None = None, **draws: Any) -> dict[str, Tensor]:
        """Tell the pixels' classes.

        Args:
            batch: `image`, B, C, H, W, and `mask`, B, H, W, -1 where nothing counts.

        Returns:
            "output", the logits, and with masks "loss", "segmentation" and, with an auxiliary head, "auxiliary".
        """
        self.refuse_draws(draws)
        if "mask" not in batch:
            return {"output": self.tell(batch)}
        if isinstance(self.model, HostedSegmenter):
            own, logits = self.model.losses(batch["image"], batch["mask"].long())
            return {"output": logits, "segmentation": own.detach(), "loss": own, "own": own}
        answer = self.ask(batch)
        logits = _logits(answer)
        mask = batch["mask"].long()  # read as int16
        own = self.compare(logits, mask, self.class_weights)
        result = {"output": logits, "segmentation": own.detach()}
        if isinstance(answer, Answers) and self.options.aux:
            aux = self.compare(answer.aux, mask, self.class_weights)
            own = own + self.options.aux * aux
            result["auxiliary"] = aux.detach()
        return {**result, "loss": own, "own": own}

    def tell(self, batch: Batch) -> Tensor:
        """Return logits, asked for as the options say: whole or by windows, at some scales, mirrored."""

        def ask(images: Tensor) -> Tensor:
            return _logits(self.ask({**batch, "image": images}))

        options, images = self.options, batch["image"]
        slide = partial(answer_sliding, ask, window=options.crop or images.shape[-1])
        answer = ask if options.test == "whole" else slide
        if list(options.scales) == [1.0] and not options.flip:
            return answer(images)
        return answer_scales(answer, images, scales=options.scales, flip=options.flip)

    def follow(self, result: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, ...]:
        """Return the samples' shares of right pixels, summed."""
        counted = batch["mask"] != OUTSIDE
        right = (result["output"].argmax(1) == batch["mask"]) & counted
        return ((right.sum((1, 2)) / counted.sum((1, 2)).clamp(min=1)).sum(),)

    def weight_of(self, batch: Batch) -> Tensor | None:
        """Return how much the batch's pixels count, in images."""
        return pixel_weights(batch["mask"], self.class_weights).mean((1, 2)).sum()

    def reweigh(self, result: dict[str, Tensor], batch: Batch, mean: Tensor | None) -> dict[str, Tensor]:
        """Return a part's result such that a part of few counting pixels counts less; exact for cross-entropy."""
        if mean is None:
            return result
        weight = pixel_weights(batch["mask"], self.class_weights).mean()
        return result | {"loss": result["loss"] + result["own"] * (weight / mean.clamp(min=1e-6) - 1)}

    # Of answers

    @classmethod
    def metric_specs(cls, spec: InputSpec) -> tuple[MetricSpec, ...]:
        """Return mean IoU and what else is measured."""
        return metric_specs(spec.outputs)

    def metrics(self) -> Metrics:
        """Return what collects pixels right and wrong."""
        assert self.spec is not None
        return SegmentationMetrics(self.metric_specs(self.spec), len(self.spec.outputs))

    def read(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the classes of the pixels, `mask`, and the loss of every sample where masks are known."""
        found = {"output": output, "mask": output.argmax(1)}
        if "mask" in batch:
            truth = batch["mask"].long()
            weights = None if self.class_weights is None else self.class_weights.to(output.device)
            counted = pixel_weights(truth, weights).sum((1, 2)).clamp(min=1e-6)
            found["loss"] = pixel_losses(output, truth, weights).sum((1, 2)) / counted
            if self.keep_masks:
                found["small"] = small_masks(found["mask"])
        return found

    # For people


def _note_absent(spec: InputSpec, pixels: np.ndarray, part: str, samples: int, so: str) -> None:
    """Tell of classes without a pixel."""
    absent = [name for name, count in zip(spec.outputs, pixels, strict=True) if not count]
    if absent:
        among = "" if samples <= LOOKED else f" of {LOOKED} that were looked at"
        spec.notes.append(f"no pixel of the {part} masks{among} is of {abbreviate(absent)}; {so}")


def _try_once(model: nn.Module, images: Tensor, name: str) -> None:
    """Refuse a host of one size whose maps do not fit together; only its answer tells."""
    try:
        with torch.no_grad():
            model.eval()(images)
    except (RuntimeError, AssertionError) as error:
        side = images.shape[-1]
        raise ConfigError(
            f"{name} gives no maps that a head can join at {side} x {side} pixels ({error}); choose another model, or "
            "another --img-size"
        ) from None
    model.train()


def _logits(answer: Any) -> Tensor:
    logits = getattr(answer, "logits", answer)
    if not isinstance(logits, Tensor) or logits.ndim != 4:
        raise TypeError(
            f"the model returned {type(answer).__name__}; segmentation needs logits B, K, H, W, or an object with them "
            "as `logits`"
        )
    return logits


def _class_weights(loss: LossConfig, spec: InputSpec) -> Tensor | None:
    if loss.class_weights != "balanced":
        return weigh_classes(loss, None, classes=len(spec.outputs))
    if "pixels" not in spec.extra:
        raise ConfigError("loss.class_weights = balanced needs the classes' pixels; a stream does not tell")
    pixels = torch.tensor(spec.extra["pixels"], dtype=torch.float64)
    # Of the root: borders are thin.
    weights = torch.where(pixels > 0, (pixels.sum() / pixels.clamp(min=1)).sqrt(), 0.0)
    return (weights / weights.mean()).float()
