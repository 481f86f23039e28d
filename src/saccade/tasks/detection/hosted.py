"""Detectors of Hugging Face behind this task: DETR's successors, which give as many boxes as they have queries."""

from typing import Any

import torch
from torch import Tensor, nn

from .boxes import clip, take
from .objects import Objects
from .sparse import in_sides

KEPT = 100


class HostedDetector(nn.Module):
    """A model of transformers that answers like this package's detectors.

    Args:
        model: of one of the kinds that score every class by itself.
        num_classes: that objects are told apart into.
    """

    overlap = 1.0
    no_graph = "it is a model of transformers; use the run itself, or a head of this package's: atss, retinanet"

    def __init__(self, model: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.host, self.num_classes = model, num_classes
        self.pretrained_cfg: dict[str, Any] = {}
        self.default_cfg: dict[str, Any] = {}

    def losses(self, x: Tensor, objects: Objects, seeds: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the model's own loss.

        Args:
            x: images, B, C, H, W.
            objects: what is in them.
            seeds: not needed: what the model draws by lot is torch's, seeded in every step.
        """
        boxes = in_sides(objects.boxes, (x.shape[-2], x.shape[-1]))
        middle, sides = (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
        placed = torch.cat([middle, sides], dim=-1)
        labels = [
            {"class_labels": objects.labels[number][real], "boxes": placed[number][real]}
            for number, real in enumerate(objects.real)
        ]
        return {"host": self.host(pixel_values=x, labels=labels).loss}

    def forward(self, x: Tensor) -> Tensor:
        """Return the surest answers, B, K, 6: box, score and class."""
        said = self.host(pixel_values=x)
        logits, placed = said.logits.float(), said.pred_boxes.float()
        size = (x.shape[-2], x.shape[-1])
        scores = logits[..., : self.num_classes].sigmoid().flatten(1)
        value, place = scores.topk(min(KEPT, scores.shape[1]), dim=1)
        middle, half = placed[..., :2], placed[..., 2:] / 2
        boxes = in_sides(torch.cat([middle - half, middle + half], dim=-1), (1 / size[0], 1 / size[1]))
        box = take(clip(boxes, size), place // self.num_classes)
        return torch.cat([box, value[..., None], (place % self.num_classes)[..., None].to(box.dtype)], dim=-1)
