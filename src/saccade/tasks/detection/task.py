"""Object detection."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...data.feed import Batch
from ...data.spec import InputSpec, set_longest
from ...data.targets import Counts
from ...settings import LossConfig
from ..registering import register_task
from ..task import Task
from .boxes import seen_boxes
from .codec import DetectionCodec, answer_filter
from .detector import CELLS, read_answers
from .errors import ShownMetrics
from .hosts import DetectionHosts
from .objects import Objects, unpack_masks
from .presenter import DetectionPresenter
from .reader import DetectionReader, DetectOptions, filter_options
from .rules import RULES

SHOWN_MASKS = 20  # most masks shown in an image


@register_task("detect")
class Detect(Task):
    """Object detection, with losses computed by the detector.

    Args:
        model: a detector.
        options: options of training and inference.
    """

    reader, codec, metrics = DetectionReader, DetectionCodec, ShownMetrics
    presenter, hosts = DetectionPresenter, DetectionHosts
    running = ()
    Options = DetectOptions
    recipe, finetuning, largest = "detect", "detect_finetune", 512
    asked_by = ("least", "overlap", "kept", "longest")
    rules = RULES

    def __init__(self, model: nn.Module, *, options: DetectOptions | None = None) -> None:
        super().__init__(model, options=options)
        head: Any = getattr(model, "head", None)
        if options is not None and hasattr(head, "kept"):
            head.kept = max(head.kept, options.kept)

    @classmethod
    def arguments(cls, spec: InputSpec, options: Any, loss: LossConfig | None, counts: Counts) -> dict[str, Any]:
        """Return the options; default: those of the spec."""
        if options is not None:
            spec.extra |= filter_options(options)
            set_longest(spec, options.longest)
        return {"options": options}

    def draw(
        self, batch_size: int, *, device: torch.device | str, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Draw a random seed for each image."""
        return {"seeds": torch.randint(0, 2**31, (batch_size,), device=device, generator=generator)}

    def loss(self, batch: Batch, *, generator: torch.Generator | None = None, **draws: Any) -> dict[str, Tensor]:
        """Compute objects and losses.

        Args:
            batch: `image`, B, C, H, W; `boxes`, B, N, 4; `labels`, B, N; `crowd`, B, N; optionally `mask`, B, L, H, W.
            generator: random generator.
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
        """Return the visible objects of a batch."""
        size = (batch["image"].shape[-2], batch["image"].shape[-1])
        if batch["labels"].device.type == "cpu":  # only as many rows as needed, since each may have a mask
            most = max(int((batch["labels"] >= 0).sum(1).max()), 1)
            batch = batch | {name: batch[name][:, :most] for name in ("boxes", "labels", "crowd")}
        boxes, seen = seen_boxes(batch["boxes"].float(), size)
        large = ((boxes[..., 2:] - boxes[..., :2]) >= 1).all(-1)
        labels = torch.where(seen & large, batch["labels"], -1)
        masks = None
        if "mask" in batch and self.spec is not None and self.spec.extra.get("masks"):
            numbers = torch.arange(1, labels.shape[1] + 1, device=labels.device, dtype=batch["mask"].dtype)
            masks = unpack_masks(batch["mask"], numbers)
        return Objects(boxes, labels, batch["crowd"].bool(), masks)

    # Decoding

    def read(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return filtered objects: `boxes`, `scores`, `labels` and optionally `masks`, best first."""
        assert self.spec is not None
        found = read_answers(output, **answer_filter(self.spec))
        kept = {"output": output, "boxes": found.boxes, "scores": found.scores, "labels": found.labels}
        return kept if found.masks is None else kept | {"masks": found.masks}

    def for_pages(self, answers: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return the masks with the highest scores."""
        return {"masks": (255 * answers["masks"][:, :SHOWN_MASKS]).to(torch.uint8)} if "masks" in answers else {}
