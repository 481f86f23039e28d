"""Objects and detections as tensors with equal numbers of rows per image."""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Objects(NamedTuple):
    """The objects of a batch."""

    boxes: Tensor  # corners in pixels, B, N, 4
    labels: Tensor  # classes, B, N; -1 for padding
    crowd: Tensor  # crowd regions, B, N
    masks: Tensor | None = None  # 0 or 1, B, N, H, W, of the images' size or an integer fraction of it

    @property
    def real(self) -> Tensor:
        """Which rows are single objects, B, N."""
        return (self.labels >= 0) & ~self.crowd


def unpack_masks(layers: Tensor, numbers: Tensor) -> Tensor:
    """Return masks, ..., N, H, W, of the numbers of objects in layers, ..., L, H, W."""
    each = [layer.unsqueeze(-3) == numbers[:, None, None] for layer in layers.unbind(-3)]
    return reduce(torch.logical_or, each)


class Detections(NamedTuple):
    """Detections, best first."""

    boxes: Tensor  # corners in pixels, B, K, 4
    scores: Tensor  # B, K
    labels: Tensor  # classes, B, K; -1 for padding
    masks: Tensor | None = None  # probabilities inside each box, B, K, side, side

    def rows(self) -> Tensor:
        """Return one tensor, B, K, 6 or more: box, score, class (-1 for none) and mask cells."""
        parts = [self.boxes, self.scores[..., None], self.labels[..., None].to(self.boxes.dtype)]
        return torch.cat(parts if self.masks is None else [*parts, self.masks.flatten(2)], dim=-1)


class Head(nn.Module):
    """Base of detection heads.

    Attributes:
        overlap: IoU threshold of non-maximum suppression.
        kept: most objects per image.
        least: score threshold.
    """

    overlap: float = 0.5
    kept: int = 100
    least: float = 0.05

    @property
    def mask_side(self) -> int:
        """Side of predicted masks in cells; 0 without masks."""
        return 0

    def halve_anchors(self, times: int) -> None:
        """Halve the anchors `times` times, if objects are matched by overlap."""

    def losses(
        self, maps: Sequence[Tensor], objects: Objects, size: tuple[int, int], seeds: Tensor
    ) -> dict[str, Tensor]:
        """Return the losses by name.

        Args:
            maps: feature maps of the backbone, finest first.
            seeds: random seed of each image.
        """
        raise NotImplementedError

    def answers(self, maps: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
        """Return answers, B, M, 6 or more: box, score, class (-1 for none) and the cells of a mask."""
        raise NotImplementedError
