"""What is in images, and what a detector finds there: tensors with as many rows for every image."""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Objects(NamedTuple):
    """What is in the images of a batch."""

    boxes: Tensor  # corners in pixels, B, N, 4
    labels: Tensor  # classes, B, N; -1 where the row fills up the batch
    crowd: Tensor  # regions in which nothing is said of single objects, B, N
    masks: Tensor | None = None  # 0 or 1, B, N, H, W, of the images' size or a whole part of it; None without

    @property
    def real(self) -> Tensor:
        """Which rows are single objects, B, N."""
        return (self.labels >= 0) & ~self.crowd


def unpack_masks(layers: Tensor, numbers: Tensor) -> Tensor:
    """Return which pixels are whose, ..., N, H, W, of the numbers of objects in layers, ..., L, H, W."""
    each = [layer.unsqueeze(-3) == numbers[:, None, None] for layer in layers.unbind(-3)]
    return reduce(torch.logical_or, each)


class Found(NamedTuple):
    """What a detector answers, best first."""

    boxes: Tensor  # corners in pixels, B, K, 4
    scores: Tensor  # B, K
    labels: Tensor  # classes, B, K; -1 where nothing more was found
    masks: Tensor | None = None  # chances within each box, B, K, side, side; None without

    def rows(self) -> Tensor:
        """Return all of it as one tensor, B, K, 6 or more: box, score, class (-1 for none) and the cells of a mask."""
        parts = [self.boxes, self.scores[..., None], self.labels[..., None].to(self.boxes.dtype)]
        return torch.cat(parts if self.masks is None else [*parts, self.masks.flatten(2)], dim=-1)


class Head(nn.Module):
    """What finds objects in a backbone's maps.

    Attributes:
        overlap: of two answers of a class at which the better one alone stays.
        kept: answers of an image.
        least: score from which an answer counts.
    """

    overlap: float = 0.5
    kept: int = 100
    least: float = 0.05

    @property
    def mask_side(self) -> int:
        """Cells a side of the masks in answers; 0 without masks."""
        return 0

    def halve_anchors(self, times: int) -> None:
        """Begin with smaller anchors, where objects are matched by how much these overlap them."""

    def losses(
        self, maps: Sequence[Tensor], objects: Objects, size: tuple[int, int], seeds: Tensor
    ) -> dict[str, Tensor]:
        """Return the losses by name.

        Args:
            maps: the backbone's, finest first.
            seeds: of what is drawn by lot, a number for each image.
        """
        raise NotImplementedError

    def answers(self, maps: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
        """Return answers, B, M, 6 or more: box, score, class (-1 for none) and the cells of a mask."""
        raise NotImplementedError
