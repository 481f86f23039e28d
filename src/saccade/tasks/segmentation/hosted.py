"""Hugging Face segmenters with mask queries, such as Mask2Former."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..hosting import Hosted

EPSILON = 1e-6  # least probability of a class


class HostedSegmenter(Hosted):
    """A transformers model with the interface of saccade's segmenters.

    Args:
        model: a model with class and mask queries.
        num_classes: number of classes.
    """

    no_graph = "it is a transformers model; use the run itself, or one of saccade's heads: upernet, fpn"

    def losses(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's own loss, and logits, B, K, H, W; ignored pixels are in no mask.

        Args:
            x: images, B, C, H, W.
            mask: classes of the pixels, B, H, W; -1 for ignored ones.
        """
        kinds = [torch.unique(one[one >= 0]) for one in mask]
        masks = [(one[None] == kind[:, None, None]).to(x.dtype) for one, kind in zip(mask, kinds, strict=True)]
        outputs = self.host(pixel_values=x, mask_labels=masks, class_labels=kinds)
        return outputs.loss.mean(), self._read(outputs, x)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, B, K, H, W: for each class, the masks of all queries weighted by its probability."""
        return self._read(self.host(pixel_values=x), x)

    def _read(self, outputs: Any, x: Tensor) -> Tensor:
        chances = outputs.class_queries_logits.float().softmax(-1)[
            ..., : self.num_classes
        ]  # without the last class, "no object"
        masks = outputs.masks_queries_logits.float().sigmoid()
        found = torch.einsum("bqk,bqhw->bkhw", chances, masks)
        return F.interpolate(found, x.shape[-2:], mode="bilinear", align_corners=False).clamp(min=EPSILON).log()
