"""Erasing a box of an image by noise of every pixel, as timm's `pixel` mode does."""

import math

import torch
from torch import Tensor

from .draws import MASK, key, stir, uniform
from .geometry import change

AREA, ASPECT = (0.02, 1 / 3), (0.3, 1 / 0.3)  # least and most, of the image's area and of height to width
ATTEMPTS = 10  # boxes that are drawn until one fits
PIXELS, NOISE = 0x9E1, 0x9E2  # purposes of draws


def erase_pixels(images: Tensor, keys: Tensor, probability: float) -> Tensor:
    """Fill a box with standard normal noise, in a share of the normalised images.

    Args:
        images: B, C, H, W.
        keys: of the images' draws, B int64.
        probability: of an image to be tried; it stays whole if no box fits.
    """
    inside = draw_boxes(keys, probability, (images.shape[-2], images.shape[-1]))
    return change(images, inside.flatten(1).any(1), fill_with_noise, inside, keys)


def draw_boxes(keys: Tensor, probability: float, size: tuple[int, int]) -> Tensor:
    """Return which pixels are erased, bool B, H, W."""
    height, width = size
    draws = uniform(key(keys, PIXELS)[:, None], torch.arange(3 + 2 * ATTEMPTS, device=keys.device))
    areas, aspects = draws[:, 3:].chunk(2, dim=1)  # B, ATTEMPTS
    area = (AREA[0] + areas * (AREA[1] - AREA[0])) * height * width
    low, high = math.log(ASPECT[0]), math.log(ASPECT[1])
    aspect = torch.exp(low + aspects * (high - low))
    heights, widths = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (heights < height) & (widths < width)
    first = (fits.cumsum(1) == 0).sum(1, keepdim=True).clamp(max=ATTEMPTS - 1)
    erased = (draws[:, 0] < probability) & fits.any(1)
    found = []
    for length, extents, draw in ((height, heights, draws[:, 1]), (width, widths, draws[:, 2])):
        extent = extents.gather(1, first)[:, 0]
        begin = (draw * (length - extent + 1)).floor()
        place = torch.arange(length, device=keys.device)
        found.append((place >= begin[:, None]) & (place < (begin + extent)[:, None]))
    rows, columns = found
    return rows[:, :, None] & columns[:, None, :] & erased[:, None, None]


def fill_with_noise(images: Tensor, inside: Tensor, keys: Tensor) -> Tensor:
    """Return images with noise where they are erased."""
    count = images[0].numel()
    places = stir(torch.arange(count, device=keys.device) & MASK)
    bits = stir(places ^ key(keys, NOISE)[:, None])  # B, C * H * W: 32 bits, of which two numbers are made
    radius = (-2 * (((bits >> 16) + 0.5) * 2.0**-16).log()).sqrt()
    noise = radius * ((bits & 0xFFFF) * (2 * math.pi * 2.0**-16)).cos()
    return torch.where(inside[:, None], noise.view_as(images).to(images.dtype), images)
