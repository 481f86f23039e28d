"""Losses of segmentation: cross-entropy, focal, hard examples, Dice; ignored pixels do not count.

Shapes are static, so that steps can be compiled and replayed: ignored pixels have weight zero.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ...data.geometry import OUTSIDE
from ...layers.numerics import upcast
from ...settings import ConfigError

Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # logits B, K, H, W, classes B, H, W, weights K -> scalar
HARD = 0.7  # probability of the true class above which a pixel is easy
MIN_SHARE_KEPT = 1 / 16  # least share of pixels to keep
GAMMA = 2.0


def mask_loss(name: str) -> Loss:
    """Return a loss by name, or the sum of several: "ce", "dice", "ce+dice", "focal", "ohem"."""
    parts = [part.strip() for part in name.split("+")]
    unknown = [part for part in parts if part not in LOSSES]
    if unknown or not parts:
        raise ConfigError(
            f"segment:loss={name} was given; it must be one of {', '.join(LOSSES)}, or several joined by +"
        )
    kinds = [LOSSES[part] for part in parts]
    return lambda logits, target, weights: torch.stack([kind(logits, target, weights) for kind in kinds]).sum()


def cross_entropy(logits: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy, weighted by class."""
    return _mean(pixel_losses(logits, target, weights), pixel_weights(target, weights))


def focal(logits: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the focal loss (Lin et al., 2017)."""
    plain = pixel_losses(logits, target)
    counted = pixel_weights(target, weights)
    return _mean((1 - torch.exp(-plain)) ** GAMMA * plain * counted, counted)


def hard_examples(logits: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy of hard pixels (true class below 0.7), at least a sixteenth of all."""
    plain = pixel_losses(logits, target).detach()
    counted = target != OUTSIDE
    ranked = torch.where(counted, plain, -1.0).flatten()
    kept = max(round(ranked.numel() * MIN_SHARE_KEPT), 1)
    limit = ranked.topk(kept).values[-1].clamp(max=-math.log(HARD))
    hard = pixel_weights(target, weights) * (counted & (plain >= limit))
    return _mean(pixel_losses(logits, target) * hard, hard)


def dice(logits: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the Dice loss, averaged over classes in the batch."""
    shares = upcast(logits).softmax(1) * (target != OUTSIDE)[:, None]
    truth = target[:, None] == torch.arange(logits.shape[1], device=target.device)[:, None, None]
    overlap, whole = (shares * truth).sum((0, 2, 3)), (shares + truth).sum((0, 2, 3))
    lost = 1 - (2 * overlap + 1) / (whole + 1)
    present = (truth.sum((0, 2, 3)) > 0).to(lost.dtype)
    present = present if weights is None else present * weights
    return _mean(lost * present, present)


def pixel_losses(logits: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the cross-entropy of every pixel, B, H, W; zero for ignored ones."""
    return F.cross_entropy(upcast(logits), target, weight=weights, ignore_index=OUTSIDE, reduction="none")


def pixel_weights(target: Tensor, weights: Tensor | None) -> Tensor:
    """Return the weight of every pixel, B, H, W."""
    counted = (target != OUTSIDE).float()
    return counted if weights is None else counted * weights[target.clamp(min=0)]


def _mean(losses: Tensor, weights: Tensor) -> Tensor:
    return losses.sum() / weights.sum().clamp(min=1e-6)  # 0 if all pixels are ignored


LOSSES: dict[str, Loss] = {"ce": cross_entropy, "focal": focal, "ohem": hard_examples, "dice": dice}
