"""Hugging Face detectors: DETR variants with one box per query."""

import torch
from torch import Tensor

from ..hosting import Hosted
from .boxes import clip
from .objects import Objects
from .sparse import from_centres, in_sides, top_answers

MAX_ANSWERS = 100


class HostedDetector(Hosted):
    """A transformers model with the interface of saccade's detectors.

    Args:
        model: a model with independent class scores.
        num_classes: number of classes.
    """

    overlap = 1.0
    no_graph = "it is a transformers model; use the run itself, or one of saccade's heads: atss, retinanet"

    def losses(self, x: Tensor, objects: Objects, seeds: Tensor) -> dict[str, Tensor]:
        """Return the model's own loss.

        Args:
            x: images, B, C, H, W.
            objects: objects in the images.
            seeds: unused: the model uses torch's random numbers, seeded in every step.
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
        """Return the top objects, B, K, 6: box, score and class."""
        outputs = self.host(pixel_values=x)
        size = (x.shape[-2], x.shape[-1])
        boxes = clip(from_centres(outputs.pred_boxes.float(), size), size)
        return top_answers(outputs.logits.float()[..., : self.num_classes].sigmoid(), boxes, MAX_ANSWERS)
