"""Photometric distortion of segmentation's and SSD's training (Liu et al., 2016): each part with a probability."""

import torch
from torch import Tensor

from .draws import uniform
from .geometry import change

FIRST = 4096  # first of its purposes of draws
BRIGHTNESS, CONTRAST, SATURATION, HUE = 32 / 255, 0.5, 0.5, 18 / 180  # most that each changes


def distort(images: Tensor, keys: Tensor, probability: float) -> Tensor:
    """Change brightness, contrast, saturation and hue of images, B, 3, H, W, from 0 to 1.

    Contrast is changed before saturation and hue in half of the images, and after them in the others.

    Args:
        images: B, 3, H, W.
        keys: of the samples, B int64.
        probability: of each of the four changes.
    """
    draws = uniform(keys[:, None], torch.arange(FIRST, FIRST + 9, device=keys.device))
    changed = draws[:, :4] < probability
    amounts = (2 * draws[:, 4:8] - 1) * changed  # -1 to 1, zero for none
    bright, contrast, colour, hue = (amounts[:, part, None, None, None] for part in range(4))
    early = draws[:, 8, None, None, None] < 0.5
    images = (images.clamp(0, 1) + BRIGHTNESS * bright).clamp(0, 1)
    images = (images * (1 + CONTRAST * contrast * early)).clamp(0, 1)
    images = change(images, changed[:, 2:].any(1), recolour, 1 + SATURATION * colour, HUE * hue)
    return (images * (1 + CONTRAST * contrast * ~early)).clamp(0, 1)


def recolour(images: Tensor, saturation: Tensor, turn: Tensor) -> Tensor:
    """Scale the saturation of images and turn their hue, as shares of a circle, B, 1, 1, 1."""
    if images.shape[1] != 3:
        return images  # grey
    hue, share, value = to_hsv(images)
    return from_hsv((hue + turn[:, 0]) % 1, (share * saturation[:, 0]).clamp(0, 1), value)


def to_hsv(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return hue, saturation and value of images, B, 3, H, W, from 0 to 1 each, B, H, W."""
    red, green, blue = images.unbind(1)
    value, least = images.amax(1), images.amin(1)
    span = value - least
    safe = span.clamp(min=1e-8)
    sixths = torch.where(
        value == red,
        ((green - blue) / safe) % 6,
        torch.where(value == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    return torch.where(span > 0, sixths / 6, 0.0), span / value.clamp(min=1e-8), value


def from_hsv(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Return images, B, 3, H, W, of hue, saturation and value, B, H, W."""
    parts = []
    for offset in (5, 3, 1):  # red, green, blue
        place = (offset + 6 * hue) % 6
        parts.append(value - value * saturation * torch.minimum(place, 4 - place).clamp(0, 1))
    return torch.stack(parts, dim=1)
