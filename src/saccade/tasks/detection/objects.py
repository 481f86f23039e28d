"""What is in images, and what a detector finds there: tensors with as many rows for every image."""

from typing import NamedTuple

from torch import Tensor


class Objects(NamedTuple):
    """What is in the images of a batch.

    Attributes:
        boxes: corners in pixels, B, N, 4.
        labels: classes, B, N; -1 where the row fills up the batch.
        crowd: regions in which nothing is said of single objects, B, N.
        masks: 0 or 1, B, N, H, W, of the images' size or a whole part of it; None without.
    """

    boxes: Tensor
    labels: Tensor
    crowd: Tensor
    masks: Tensor | None = None

    @property
    def real(self) -> Tensor:
        """Which rows are single objects, B, N."""
        return (self.labels >= 0) & ~self.crowd


class Found(NamedTuple):
    """What a detector answers, best first.

    Attributes:
        boxes: corners in pixels, B, K, 4.
        scores: B, K.
        labels: classes, B, K; -1 where nothing more was found.
        masks: chances within each box, B, K, side, side; None without.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    masks: Tensor | None = None
