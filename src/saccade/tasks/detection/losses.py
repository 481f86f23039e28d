"""Losses of detectors, summed over anchors; who sums them divides."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .boxes import generalized_overlap


def focal(logits: Tensor, targets: Tensor, *, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """Return the focal loss of each logit (Lin et al., 2017): what is easy counts little.

    Args:
        alpha: weight of what is 1; 1 - alpha is that of 0.
        gamma: how quickly the easy ones lose weight.
    """
    chance = logits.sigmoid()
    missed = chance + targets - 2 * chance * targets
    weight = alpha * targets + (1 - alpha) * (1 - targets)
    return weight * missed**gamma * F.binary_cross_entropy_with_logits(logits, targets, reduction="none")


def overlap_loss(boxes: Tensor, targets: Tensor) -> Tensor:
    """Return 1 - GIoU of boxes pair by pair, ..., N."""
    return 1 - generalized_overlap(boxes, targets)


def smooth_l1(codes: Tensor, targets: Tensor, *, beta: float) -> Tensor:
    """Return the absolute difference, squared where it is smaller than beta; beta of 0 squares nothing."""
    return F.smooth_l1_loss(codes, targets, reduction="none", beta=beta) if beta else (codes - targets).abs()


def mean_where(values: Tensor, chosen: Tensor, *, over: Tensor | float | None = None) -> Tensor:
    """Return the sum of values where they are chosen, over how many are chosen or another number, at least 1.

    Args:
        values: of any shape.
        chosen: bool of the first dimensions of that shape.
        over: what the sum is divided by.
    """
    mask = chosen.reshape(*chosen.shape, *(1,) * (values.dim() - chosen.dim()))
    total = torch.where(mask, values, 0).sum()
    count = chosen.sum() if over is None else torch.as_tensor(over, device=values.device)
    return total / count.clamp(min=1)
