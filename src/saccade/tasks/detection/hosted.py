"""Detectors of Hugging Face behind this task: DETR's successors, which give as many boxes as they have queries."""

import torch
from torch import Tensor

from ..hosting import Hosted
from .boxes import clip
from .objects import Objects
from .sparse import from_centres, in_sides, surest

KEPT = 100


class HostedDetector(Hosted):
    """A model of transformers that answers like this package's detectors.

    Args:
        model: of one of the kinds that score every class by itself.
        num_classes: that objects are told apart into.
    """

    overlap = 1.0
    no_graph = "it is a model of transformers; use the run itself, or a head of this package's: atss, retinanet"

    def losses(self, x: Tensor, objects: Objects, seeds: Tensor) -> dict[str, Tensor]:
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
        size = (x.shape[-2], x.shape[-1])
        boxes = clip(from_centres(said.pred_boxes.float(), size), size)
        return surest(said.logits.float()[..., : self.num_classes].sigmoid(), boxes, KEPT)
