"""What becomes of labels when samples are mixed."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...data.augment import Mix


def shares_of(labels: Tensor, mix: Mix | None) -> Tensor:  # noqa: ARG001
    """Return labels as they are: nothing is shared."""
    return labels


@dataclass(frozen=True)
class ClassShares:
    """Labels as shares of classes, smoothed, and mixed as the images were."""

    classes: int
    smoothing: float  # share of a label spread evenly over all of them

    def __call__(self, labels: Tensor, mix: Mix | None) -> Tensor:
        """Return shares, B, classes, of labels, B."""
        shares = F.one_hot(labels, self.classes).float()
        shares = shares * (1 - self.smoothing) + self.smoothing / self.classes
        return shares if mix is None else torch.lerp(shares[mix.partner], shares, mix.share[:, None])
