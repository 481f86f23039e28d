"""Elementwise losses of detectors, which callers sum and normalise."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .boxes import generalized_overlap


def focal(logits: Tensor, targets: Tensor, *, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """Return the focal loss of each logit (Lin et al., 2017).

    Args:
        alpha: weight of positives; negatives have 1 - alpha.
        gamma: focusing exponent.
    """
    chance = logits.sigmoid()
    missed = chance + targets - 2 * chance * targets
    weight = alpha * targets + (1 - alpha) * (1 - targets)
    return weight * missed**gamma * F.binary_cross_entropy_with_logits(logits, targets, reduction="none")


def overlap_loss(boxes: Tensor, targets: Tensor) -> Tensor:
    """Return 1 - GIoU of pairs of boxes, ..., N."""
    return 1 - generalized_overlap(boxes, targets)


def smooth_l1(codes: Tensor, targets: Tensor, *, beta: float) -> Tensor:
    """Return the smooth L1 loss; beta of 0 is L1."""
    return F.smooth_l1_loss(codes, targets, reduction="none", beta=beta) if beta else (codes - targets).abs()


def mean_where(values: Tensor, chosen: Tensor, *, over: Tensor | float | None = None) -> Tensor:
    """Return the sum of chosen values, divided by their number or by `over`, at least 1.

    Args:
        values: values of any shape.
        chosen: mask of the leading dimensions.
        over: divisor.
    """
    mask = chosen.reshape(*chosen.shape, *(1,) * (values.dim() - chosen.dim()))
    total = torch.where(mask, values, 0).sum()
    count = chosen.sum() if over is None else torch.as_tensor(over, device=values.device)
    return total / count.clamp(min=1)
