"""Augmentation of whole batches where the pictures are, each picture with draws of its own.

Every draw is a function of the picture's key (see `draws`), so that the same picture in the same epoch looks the same
whatever batch, process or device it is in. Geometry is one gather and at most one resampling per batch. A GPU does
everything to every picture, which spares waiting for it; a CPU does to each picture only what changes it.
"""

import copy
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import AugmentConfig
from .draws import uniform

# Purposes of draws. RandAugment's operations take four each from RAND on.
FLIP, LEFT, TOP, AREA, RATIO, JITTER, ERASE, MIX, RAND, PURPOSES = 1, 2, 3, 4, 5, 8, 12, 24, 32, 64


class Augment:
    """Turn bytes into training images and labels into what they are compared with.

    Args:
        config: what to do.
        mean: of each channel, from 0 to 1.
        std: of each channel.
        num_classes: to spread labels over.
        img_size: side of the images.
        smoothing: share of a label spread evenly over all classes.
        device: where the batches are.
    """

    def __init__(
        self,
        config: AugmentConfig,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        num_classes: int,
        img_size: int,
        smoothing: float = 0.0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config
        self.num_classes, self.img_size, self.smoothing = num_classes, img_size, smoothing
        self.normalize = Normalize(mean, std, device=device)
        self.mixup = beta_quantiles(config.mixup).to(device) if config.mixup else None
        self.cutmix = beta_quantiles(config.cutmix).to(device) if config.cutmix else None

    def __call__(self, pictures: Tensor, labels: Tensor, keys: Tensor, *, strong: bool = True) -> tuple[Tensor, Tensor]:
        """Augment a batch.

        Args:
            pictures: uint8, B, C, H, W.
            labels: int64, B.
            keys: int64, B: a picture's draws.
            strong: False leaves out RandAugment, erasing and mixing.

        Returns:
            Normalised images, B, C, img_size, img_size, and shares of classes, B, num_classes, or the labels as they
            are if nothing is shared.
        """
        config = self.config
        dice = throw(keys)
        if config.crop == "pad":
            pictures = shift(pictures, dice, pad=round(config.pad * pictures.shape[-1]), flip=config.flip)
        elif config.flip:
            pictures = shift(pictures, dice, pad=0, flip=config.flip)
        images = pictures.float().div_(255)
        moves = identity(images) if config.crop != "resized" else resized_crops(dice, config)
        operations = range(config.rand_ops if strong else 0)
        for operation in operations:
            moves = moves @ rand_geometry(dice, RAND + 4 * operation, config)
        if config.crop == "resized" or images.shape[-1] != self.img_size:
            images = resample(images, moves, self.img_size)
        elif len(operations):
            moved = (moves != identity(images)).flatten(1).any(1)
            images = change(images, moved, resample_moved, moved, moves)
        for operation in operations:
            images = rand_colour(images, dice, RAND + 4 * operation, config)
        if config.jitter:
            images = jitter(images, dice, config.jitter)
        images = self.normalize(images)
        if not strong:
            return images, self.targets(labels)
        if config.erase:
            images = erase(images, dice, config.erase)
        return self.mix(images, labels, dice)

    def after_framing(self) -> "Augment":
        """Return the augmentation of pictures that got their random crop when they were made square."""
        if self.config.crop != "resized":
            return self
        other = copy.copy(self)
        other.config = replace(self.config, crop="none")
        return other

    def targets(self, labels: Tensor) -> Tensor:
        """Return labels as shares of classes, B, num_classes, or as they are if nothing is ever shared."""
        if not (self.smoothing or self.config.mixup or self.config.cutmix):
            return labels
        shares = F.one_hot(labels, self.num_classes).float()
        return shares * (1 - self.smoothing) + self.smoothing / self.num_classes

    def mix(self, images: Tensor, labels: Tensor, dice: Tensor) -> tuple[Tensor, Tensor]:
        """Mix each image with its neighbour in the batch, the first with the second, the third with the fourth."""
        targets = self.targets(labels)
        if self.mixup is None and self.cutmix is None:
            return images, targets
        place = torch.arange(len(images), device=images.device)
        partner = torch.where((place ^ 1) < len(images), place ^ 1, place)
        mixed = dice[:, MIX] < self.config.mix_prob
        cut = dice[:, MIX + 1] < self.config.switch_prob
        if self.mixup is None or self.cutmix is None:
            cut = torch.full_like(cut, self.mixup is None)
        share = torch.ones_like(dice[:, MIX])  # of the image itself
        if self.mixup is not None:
            blend = torch.where(mixed & ~cut, look_up(self.mixup, dice[:, MIX + 2]), 1.0)
            images = change(images, blend < 1, partial(blend_in, images), partner, blend[:, None, None, None])
            share = share * blend
        if self.cutmix is not None:
            area = torch.where(mixed & cut, 1 - look_up(self.cutmix, dice[:, MIX + 3]), 0.0)
            inside = boxes(dice, MIX + 4, area.sqrt(), area.sqrt(), images.shape[-2:])
            images = change(images, area > 0, partial(paste_in, images), partner, inside[:, None])
            share = share * (1 - inside.float().mean((1, 2)))
        return images, torch.lerp(targets[partner], targets, share[:, None])


def change(images: Tensor, changed: Tensor, function: Callable[..., Tensor], *others: Tensor) -> Tensor:
    """Return function(images, *others).

    Args:
        images: B, ...
        changed: bool, B: False where the function gives back the image, which a CPU then does not compute.
        function: of images and others, picture by picture.
        others: what else it takes, B, ...
    """
    if images.device.type != "cpu":
        return function(images, *others)
    places = changed.nonzero()[:, 0]
    if not len(places):
        return images
    result = images.clone()
    result[places] = function(images[places], *(other[places] for other in others))
    return result


def blend_in(batch: Tensor, images: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """Return a share of the images and the rest of their partners in the batch."""
    return torch.lerp(batch[partner], images, share)


def paste_in(batch: Tensor, images: Tensor, partner: Tensor, inside: Tensor) -> Tensor:
    """Return the images, inside of boxes their partners in the batch."""
    return torch.where(inside, batch[partner], images)


def throw(keys: Tensor) -> Tensor:
    """Return all draws of pictures, B, PURPOSES, in [0, 1)."""
    return uniform(keys[:, None], torch.arange(PURPOSES, device=keys.device))


class Normalize:
    """Bring each channel to mean zero and deviation one."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, device: torch.device | str = "cpu") -> None:
        self.mean = torch.tensor(mean, device=device).view(-1, 1, 1)
        self.std = torch.tensor(std, device=device).view(-1, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise B, C, H, W; bytes are taken as 0 to 255, floats as 0 to 1."""
        if images.dtype == torch.uint8:
            images = images.float().div_(255)
        return (images - self.mean) / self.std


def shift(pictures: Tensor, dice: Tensor, *, pad: int, flip: float) -> Tensor:
    """Move pictures by up to `pad` pixels each way, mirrored at the edges, and flip a share `flip` of them."""
    batch, channels, height, width = pictures.shape
    device = pictures.device
    rows = torch.arange(height, device=device).expand(batch, -1)
    columns = torch.arange(width, device=device).expand(batch, -1)
    flipped = (dice[:, FLIP] < flip)[:, None]
    columns = torch.where(flipped, width - 1 - columns, columns)
    if pad:
        rows = mirror(rows + (dice[:, TOP] * (2 * pad + 1)).long()[:, None] - pad, height)
        columns = mirror(columns + (dice[:, LEFT] * (2 * pad + 1)).long()[:, None] - pad, width)
    if device.type == "cpu":  # one by one is several times as fast as indexing by all of them
        picked = zip(pictures, rows, columns, strict=True)
        return torch.stack([picture.index_select(1, y).index_select(2, x) for picture, y, x in picked])
    at = torch.arange(batch, device=device)[:, None, None, None]
    channel = torch.arange(channels, device=device)[:, None, None]
    return pictures[at, channel, rows[:, None, :, None], columns[:, None, None, :]]


def mirror(index: Tensor, length: int) -> Tensor:
    """Reflect indices that lie outside of 0 .. length - 1, the edge itself not repeated."""
    if length == 1:
        return torch.zeros_like(index)
    index = index.abs() % (2 * length - 2)
    return torch.where(index < length, index, 2 * length - 2 - index)


def identity(images: Tensor) -> Tensor:
    """Return the matrix that moves nothing, 1, 3, 3."""
    return torch.eye(3, device=images.device)[None]


def resized_crops(dice: Tensor, config: AugmentConfig) -> Tensor:
    """Return matrices from the output's square, -1 to 1, to a random part of the picture's, B, 3, 3."""
    height, width = crop_sides(dice, config)
    centre_x = (2 * dice[:, LEFT] - 1) * (1 - width)
    centre_y = (2 * dice[:, TOP] - 1) * (1 - height)
    return matrices(width, 0, centre_x, 0, height, centre_y)


def crop_sides(dice: Tensor, config: AugmentConfig) -> tuple[Tensor, Tensor]:
    """Return height and width of random crops in sides of a square picture, cut to at most one."""
    low, high = config.scale
    area = low + dice[:, AREA] * (high - low)
    narrow, wide = (math.log(side) for side in config.ratio)
    ratio = torch.exp(narrow + dice[:, RATIO] * (wide - narrow))
    return (area / ratio).sqrt().clamp(max=1), (area * ratio).sqrt().clamp(max=1)


def matrices(*entries: Tensor | float) -> Tensor:
    """Return matrices B, 3, 3 from their first two rows, numbers or one number a picture."""
    like = next(entry for entry in entries if isinstance(entry, Tensor))
    rows = [entry if isinstance(entry, Tensor) else torch.full_like(like, entry) for entry in entries]
    zero, one = torch.zeros_like(like), torch.ones_like(like)
    return torch.stack([*rows, zero, zero, one], dim=-1).unflatten(-1, (3, 3))


def resample(images: Tensor, moves: Tensor, side: int) -> Tensor:
    """Read images at moved places, bilinearly, mid-grey outside."""
    moves = moves.expand(len(images), -1, -1)[:, :2]
    grid = F.affine_grid(moves, [len(images), images.shape[1], side, side], align_corners=False)
    return F.grid_sample(images - 0.5, grid, mode="bilinear", padding_mode="zeros", align_corners=False) + 0.5


def resample_moved(images: Tensor, moved: Tensor, moves: Tensor) -> Tensor:
    """Resample what is moved; the rest keeps its exact values, which posterizing would tell from nearly the same."""
    return torch.where(moved[:, None, None, None], resample(images, moves, images.shape[-1]), images)


# RandAugment. An operation is chosen per picture: 0 leaves it, 1-5 move it, 6-13 recolour it.
OPERATIONS = 14


def rand_draws(dice: Tensor, purpose: int, config: AugmentConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Return which operation each picture gets, how strong from 0 to 1, and its sign."""
    operation = (dice[:, purpose] * OPERATIONS).long()
    # A normal deviate by Box and Muller
    radius = (-2 * (1 - dice[:, purpose + 1]).log()).sqrt()
    normal = radius * (2 * math.pi * dice[:, purpose + 2]).cos()
    strength = ((config.rand_magnitude + config.rand_spread * normal) / 10).clamp(0, 1)
    sign = torch.where(dice[:, purpose + 3] < 0.5, -1.0, 1.0)
    return operation, strength, sign


def rand_geometry(dice: Tensor, purpose: int, config: AugmentConfig) -> Tensor:
    """Return the matrices of rotations by up to 30 degrees, shears by 0.3, shifts by 0.45 of the side."""
    operation, strength, sign = rand_draws(dice, purpose, config)
    amount = strength * sign

    def of(number: int, largest: float) -> Tensor:
        return torch.where(operation == number, amount * largest, 0.0)

    angle = of(1, math.pi / 6)
    cos, sin = angle.cos(), angle.sin()
    return matrices(cos, of(2, 0.3) - sin, of(4, 0.9), sin + of(3, 0.3), cos, of(5, 0.9))


def rand_colour(images: Tensor, dice: Tensor, purpose: int, config: AugmentConfig) -> Tensor:
    """Recolour images, B, C, H, W, from 0 to 1: those whose operation is one of colour."""
    operation, strength, sign = (draw[:, None, None, None] for draw in rand_draws(dice, purpose, config))
    if images.device.type != "cpu":
        return recolour(images, operation, strength, sign, of=range(6, OPERATIONS)).clamp(0, 1)
    result = images.clamp(0, 1)
    for number in range(6, OPERATIONS):
        places = (operation == number).flatten().nonzero()[:, 0]
        if len(places):
            draws = (draw[places] for draw in (operation, strength, sign))
            result[places] = recolour(images[places], *draws, of=(number,)).clamp_(0, 1)
    return result


def recolour(images: Tensor, operation: Tensor, strength: Tensor, sign: Tensor, *, of: Collection[int]) -> Tensor:
    """Apply to each image its operation, if it is one `of` those given."""
    # Brightness, contrast, saturation and sharpness pull an image towards another one, or push it away.
    grey = luminance(images) if 7 in of or 8 in of else images
    other = torch.where(operation == 6, 0.0, images) if 6 in of else images
    if 7 in of:
        other = torch.where(operation == 7, grey.mean((2, 3), keepdim=True), other)
    if 8 in of:
        other = torch.where(operation == 8, grey, other)
    if 9 in of:
        other = torch.where(operation == 9, F.avg_pool2d(images, 3, 1, 1, count_include_pad=False), other)
    if other is not images:
        images = torch.lerp(other, images, 1 + 0.9 * strength * sign)
    if 10 in of:
        low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
        images = torch.where(operation == 10, (images - low) / (high - low).clamp(min=1e-3), images)
    if 11 in of:
        images = torch.where((operation == 11) & (images >= 1 - strength), 1 - images, images)
    if 12 in of:
        levels = 2.0 ** (8 - (4 * strength).floor())
        images = torch.where(operation == 12, (images * levels).floor() / levels, images)
    if 13 in of:
        images = torch.where((operation == 13) & (sign > 0), 1 - images, images)
    return images


def luminance(images: Tensor) -> Tensor:
    """Return the brightness of images, B, 1, H, W."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue)[:, None]


def jitter(images: Tensor, dice: Tensor, amount: float) -> Tensor:
    """Change brightness, contrast and saturation by up to `amount` each."""
    bright, contrast, colour = ((1 + (2 * dice[:, JITTER + i] - 1) * amount)[:, None, None, None] for i in range(3))
    images = images * bright
    images = torch.lerp(luminance(images).mean((2, 3), keepdim=True), images, contrast)
    return torch.lerp(luminance(images), images, colour).clamp(0, 1)


def erase(images: Tensor, dice: Tensor, probability: float) -> Tensor:
    """Paint a box of 2% to a third of the area in a random colour, in a share of the normalised images."""
    area = 0.02 + dice[:, ERASE + 1] * (1 / 3 - 0.02)
    area = torch.where(dice[:, ERASE] < probability, area, 0.0)
    ratio = torch.exp((2 * dice[:, ERASE + 2] - 1) * math.log(1 / 0.3))
    inside = boxes(dice, ERASE + 3, (area / ratio).sqrt(), (area * ratio).sqrt(), images.shape[-2:], whole=True)
    colour = torch.stack([4 * dice[:, ERASE + 5 + c % 4] - 2 for c in range(images.shape[1])], dim=1)
    return torch.where(inside[:, None], colour[:, :, None, None].to(images.dtype), images)


def boxes(
    dice: Tensor, purpose: int, height: Tensor, width: Tensor, size: Sequence[int], *, whole: bool = False
) -> Tensor:
    """Return which pixels lie in a random box of each picture, bool, B, H, W.

    Args:
        dice: the pictures' draws, B, PURPOSES.
        purpose: of the first of two draws.
        height: of the box, in heights of the picture.
        width: of the box, in widths of the picture.
        size: the picture's height and width in pixels.
        whole: keep the box within the picture; else its centre may be anywhere.
    """
    inside = []
    for axis, (share, length) in enumerate(zip((height, width), size, strict=True)):
        extent = (share.clamp(max=1) * length).round()
        free = length - extent if whole else torch.full_like(extent, length)
        begin = (dice[:, purpose + axis] * (free + whole)).floor() - (0 if whole else (extent / 2).floor())
        place = torch.arange(length, device=dice.device)
        inside.append((place >= begin[:, None]) & (place < (begin + extent)[:, None]))
    rows, columns = inside
    return rows[:, :, None] & columns[:, None, :]


def beta_quantiles(alpha: float, knots: int = 1025) -> Tensor:
    """Return quantiles of Beta(alpha, alpha) at evenly spaced shares, for `look_up`."""
    from scipy.stats import beta  # scipy takes a moment to import

    if alpha < 0:
        raise ValueError(f"alpha = {alpha} was given for mixing pictures; it must be positive, or 0 for none")
    return torch.from_numpy(beta.ppf(np.linspace(0, 1, knots), alpha, alpha)).float()


def look_up(table: Tensor, share: Tensor) -> Tensor:
    """Return the quantile at a share from 0 to 1, between the table's knots linearly."""
    place = share * (len(table) - 1)
    below = place.long().clamp(max=len(table) - 2)
    return torch.lerp(table[below], table[below + 1], place - below)
