"""Segmenters of Hugging Face behind this task: queries that each have a class and a mask, as Mask2Former has them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..hosting import Hosted

SMALLEST = 1e-6  # chance of a class


class HostedSegmenter(Hosted):
    """A model of transformers that answers like this package's segmenters.

    Args:
        model: with queries of classes and masks.
        num_classes: that pixels are told apart into.
    """

    no_graph = "it is a model of transformers; use the run itself, or a head of this package's: upernet, fpn"

    def losses(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's own loss, and logits, B, K, H, W; pixels that count nowhere belong to no mask.

        Args:
            x: images, B, C, H, W.
            mask: classes of the pixels, B, H, W; -1 where nothing counts.
        """
        kinds = [torch.unique(one[one >= 0]) for one in mask]
        masks = [(one[None] == kind[:, None, None]).to(x.dtype) for one, kind in zip(mask, kinds, strict=True)]
        said = self.host(pixel_values=x, mask_labels=masks, class_labels=kinds)
        return said.loss.mean(), self._read(said, x)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, B, K, H, W: of each class the masks of all queries, by how sure these are of it."""
        return self._read(self.host(pixel_values=x), x)

    def _read(self, said: Any, x: Tensor) -> Tensor:
        chances = said.class_queries_logits.float().softmax(-1)[..., : self.num_classes]  # the last is nothing
        masks = said.masks_queries_logits.float().sigmoid()
        found = torch.einsum("bqk,bqhw->bkhw", chances, masks)
        return F.interpolate(found, x.shape[-2:], mode="bilinear", align_corners=False).clamp(min=SMALLEST).log()
