"""Semantic segmentation."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...data.feed import Batch
from ...data.geometry import OUTSIDE
from ...data.spec import InputSpec, set_longest
from ...data.targets import Counts
from ...settings import ConfigError, LossConfig
from ..classification.task import weigh_classes
from ..registering import register_task
from ..task import Task
from .codec import SegmentationCodec
from .heads import Answers
from .hosted import HostedSegmenter
from .hosts import SegmentationHosts
from .losses import Loss, mask_loss, pixel_losses, pixel_weights
from .metrics import SegmentationMetrics, small_masks, small_squares
from .presenter import SegmentationPresenter
from .reader import SegmentationReader, SegmentOptions
from .rules import RULES
from .testing import answer_scales, answer_sliding


@register_task("segment")
class Segment(Task):
    """Semantic segmentation.

    Args:
        model: maps images to logits, B, K, H, W; in training optionally to `Answers`, with those of an auxiliary head.
        options: options of loss and inference.
        class_weights: weight of each class, K.
        keep_masks: keep small predicted masks for pages.
    """

    reader, codec, metrics = SegmentationReader, SegmentationCodec, SegmentationMetrics
    presenter, hosts = SegmentationPresenter, SegmentationHosts
    running = ("aacc",)
    Options = SegmentOptions
    asked_by = ("crop", "test", "scales", "flip", "longest")
    rules = RULES
    recipe, finetuning, largest = "segment", "segment_finetune", 512

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
        if self.options.longest is not None and getattr(model, "side", None) is not None:
            raise ConfigError(
                f"longest={self.options.longest} was given, but the backbone takes squares of {model.side} pixels "
                "only; remove it, or choose a model that takes any size"
            )
        self.loss_fn: Loss = mask_loss(self.options.loss)
        self.register_buffer("class_weights", class_weights, persistent=False)

    # In training

    @classmethod
    def arguments(cls, spec: InputSpec, options: Any, loss: LossConfig | None, counts: Counts) -> dict[str, Any]:
        """Return the options and class weights, which are balanced by pixels."""
        weights = None if loss is None else _class_weights(loss, spec)
        if options is None:
            options = SegmentOptions.of(spec)
        set_longest(spec, options.longest)
        return {"options": options, "class_weights": weights, "keep_masks": loss is not None}  # for the run's page

    def loss(self, batch: Batch, *, generator: torch.Generator | None = None, **draws: Any) -> dict[str, Tensor]:
        """Compute logits and loss.

        Args:
            batch: `image`, B, C, H, W, and `mask`, B, H, W, -1 for ignored pixels.

        Returns:
            "output", the logits, and with masks "loss", "segmentation" and, with an auxiliary head, "auxiliary".
        """
        self.refuse_draws(draws)
        if "mask" not in batch:
            return {"output": self.predict_logits(batch)}
        if isinstance(self.model, HostedSegmenter):
            own, logits = self.model.losses(batch["image"], batch["mask"].long())
            return {"output": logits, "segmentation": own.detach(), "loss": own, "own": own}
        answer = self.ask(batch)
        logits = _logits(answer)
        mask = batch["mask"].long()  # read as int16
        own = self.loss_fn(logits, mask, self.class_weights)
        result = {"output": logits, "segmentation": own.detach()}
        if isinstance(answer, Answers) and self.options.aux:
            aux = self.loss_fn(answer.aux, mask, self.class_weights)
            own = own + self.options.aux * aux
            result["auxiliary"] = aux.detach()
        return {**result, "loss": own, "own": own}

    def predict_logits(self, batch: Batch) -> Tensor:
        """Return logits of inference: whole or by sliding windows, at several scales, flipped."""

        def ask(images: Tensor) -> Tensor:
            return _logits(self.ask({**batch, "image": images}))

        options, images = self.options, batch["image"]
        slide = partial(answer_sliding, ask, window=options.crop or min(images.shape[-2:]))
        answer = ask if options.test == "whole" else slide
        if list(options.scales) == [1.0] and not options.flip:
            return answer(images)
        return answer_scales(answer, images, scales=options.scales, flip=options.flip)

    def follow(self, result: Mapping[str, Tensor], batch: Batch) -> tuple[Tensor, ...]:
        """Return the sum of the samples' pixel accuracies."""
        counted = batch["mask"] != OUTSIDE
        right = (result["output"].argmax(1) == batch["mask"]) & counted
        return ((right.sum((1, 2)) / counted.sum((1, 2)).clamp(min=1)).sum(),)

    def weight_of(self, batch: Batch) -> Tensor | None:
        """Return the weight of the batch's pixels, in images."""
        return pixel_weights(batch["mask"], self.class_weights).mean((1, 2)).sum()

    def reweigh(self, result: dict[str, Tensor], batch: Batch, mean: Tensor | None) -> dict[str, Tensor]:
        """Rescale a chunk's loss by its counted pixels; exact for cross-entropy."""
        if mean is None:
            return result
        weight = pixel_weights(batch["mask"], self.class_weights).mean()
        return result | {"loss": result["loss"] + result["own"] * (weight / mean.clamp(min=1e-6) - 1)}

    # Decoding

    def read(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return predicted classes, `mask`, and the loss of every sample if masks are known."""
        found = {"output": output, "mask": output.max(1).indices}  # on a CPU ten times as fast as argmax
        if "mask" in batch:
            truth = batch["mask"].long()
            weights = None if self.class_weights is None else self.class_weights.to(output.device)
            counted = pixel_weights(truth, weights).sum((1, 2)).clamp(min=1e-6)
            found["loss"] = pixel_losses(output, truth, weights).sum((1, 2)) / counted
        return found

    def for_pages(self, answers: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return small predicted masks."""
        if not self.keep_masks:
            return {}
        mask, squares = answers["mask"], self.options.longest is None
        return {"small": small_masks(mask) if squares else small_squares(mask, batch["size"])}


def _logits(answer: Any) -> Tensor:
    logits = getattr(answer, "logits", answer)
    if not isinstance(logits, Tensor) or logits.ndim != 4:
        raise TypeError(
            f"the model returned {type(answer).__name__}; segmentation needs logits of shape B, K, H, W, or an "
            "object with them as `logits`"
        )
    return logits


def _class_weights(loss: LossConfig, spec: InputSpec) -> Tensor | None:
    if loss.class_weights != "balanced":
        return weigh_classes(loss, None, classes=len(spec.outputs))
    if "pixels" not in spec.extra:
        raise ConfigError(
            "loss.class_weights = balanced needs the number of pixels per class, which a stream does not provide"
        )
    pixels = torch.tensor(spec.extra["pixels"], dtype=torch.float64)
    # Square root, since borders are thin.
    weights = torch.where(pixels > 0, (pixels.sum() / pixels.clamp(min=1)).sqrt(), 0.0)
    return (weights / weights.mean()).float()
