"""Spatial augmentation, applied to images, masks and boxes alike.

Every draw is a function of the sample's key (see `draws`). A batch is transformed on its device: one gather for shifts
and flips, and at most one resampling. Masks use the nearest pixel, boxes are transformed by their corners.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from ..settings import AugmentConfig
from .draws import uniform

# Purposes of draws. RandAugment's operations take four each from RAND on, and one from SPARE on.
FLIP, LEFT, TOP, AREA, RATIO, JITTER, ERASE, MIX, RAND, SPARE, PURPOSES = 1, 2, 3, 4, 5, 8, 12, 24, 32, 64, 72
OUTSIDE = -1  # mask value outside of the image


@dataclass(frozen=True)
class Shift:
    """Shifts by whole pixels with reflection padding, and horizontal flips."""

    down: Tensor  # row of the input that becomes the first one, B int64
    right: Tensor  # likewise the column, after the flip
    flipped: Tensor  # which samples are flipped, B bool

    @classmethod
    def draw(cls, draws: Tensor, *, pad: int, flip: float) -> "Shift":
        """Draw shifts of up to `pad` pixels in each direction, and flips with probability `flip`."""
        flipped = draws[:, FLIP] < flip
        if not pad:
            none = torch.zeros(len(draws), dtype=torch.int64, device=draws.device)
            return cls(none, none, flipped)
        down, right = ((draws[:, axis] * (2 * pad + 1)).long() - pad for axis in (TOP, LEFT))
        return cls(down, right, flipped)

    def pixels(self, images: Tensor) -> Tensor:
        """Shift images or masks, B, C, H, W, of any dtype."""
        batch, channels, height, width = images.shape
        device = images.device
        rows = mirror(torch.arange(height, device=device).expand(batch, -1) + self.down[:, None], height)
        columns = torch.arange(width, device=device).expand(batch, -1)
        columns = torch.where(self.flipped[:, None], width - 1 - columns, columns)
        columns = mirror(columns + self.right[:, None], width)
        if device.type == "cpu":  # a loop over samples is several times faster than advanced indexing
            picked = zip(images, rows, columns, strict=True)
            return torch.stack([image.index_select(1, y).index_select(2, x) for image, y, x in picked])
        at = torch.arange(batch, device=device)[:, None, None, None]
        channel = torch.arange(channels, device=device)[:, None, None]
        return images[at, channel, rows[:, None, :, None], columns[:, None, None, :]]

    def boxes(self, boxes: Tensor, width: int) -> Tensor:
        """Shift boxes, B, M, 4: left, top, right, bottom in pixels; reflected content has no boxes."""
        left, top, right, bottom = boxes.unbind(-1)
        down, across, flipped = self.down[:, None], self.right[:, None], self.flipped[:, None]
        first = torch.where(flipped, width + across - right, left - across)
        second = torch.where(flipped, width + across - left, right - across)
        return torch.stack([first, top - down, second, bottom - down], dim=-1)


@dataclass(frozen=True)
class Geometry:
    """Spatial transforms of a batch."""

    shift: Shift | None  # applied first, by whole pixels
    moves: Tensor  # matrices from output to input coordinates, -1 to 1; B or 1, 3, 3
    crop: Tensor  # likewise, of the random crop only
    later: Tensor | None  # likewise, of later operations on images; masks and boxes get both at once
    turned: bool  # whether `moves` affects only some samples, the others being kept exactly
    resampled: bool  # whether every sample is resampled
    size: tuple[int, int]  # height and width of the output, in pixels

    @classmethod
    def draw(
        cls,
        draws: Tensor,
        config: AugmentConfig,
        *,
        width: int,
        size: tuple[int, int],
        operations: int,
        later: Sequence[Tensor] = (),
    ) -> "Geometry":
        """Draw the geometry of a batch.

        Args:
            draws: the samples' draws, B, PURPOSES.
            width: width of the samples in pixels.
            size: height and width of the output in pixels.
            operations: RandAugment's operations, some of which are spatial.
            later: matrices of later operations on the images, B, 3, 3 each.
        """
        pad = round(config.pad * width) if config.crop == "pad" else 0
        shift = Shift.draw(draws, pad=pad, flip=config.flip) if config.crop == "pad" or config.flip else None
        crop = identity(draws) if config.crop != "resized" else resized_crops(draws, config)
        moves = rand_moves(crop, draws, config, operations, aspect=size[0] / size[1])
        after = reduce(torch.matmul, later) if later else None
        return cls(shift, moves, crop, after, operations > 0, config.crop == "resized" or width != size[1], size)

    @property
    def whole(self) -> Tensor:
        """Return the combined matrices, B or 1, 3, 3."""
        return self.moves if self.later is None else self.moves @ self.later

    def parts(self, shown: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return the part of the image that each sample shows, without RandAugment, B, 4, and which ones are flipped.

        Args:
            shown: left, top, right and bottom of the input, as fractions of the image, B, 4.
            size: height and width of the input in pixels.
        """
        width, x, height, y = (self.crop[:, row, column] for row, column in ((0, 0), (0, 2), (1, 1), (1, 2)))
        inner = torch.stack([x - width, y - height, x + width, y + height], dim=1).add(1).div(2).expand(len(shown), -1)
        flipped = torch.zeros(len(shown), dtype=torch.bool, device=shown.device)
        if self.shift is not None:
            flipped = self.shift.flipped
            left, top, right, bottom = inner.unbind(1)
            inner = torch.stack(
                [torch.where(flipped, 1 - right, left), top, torch.where(flipped, 1 - left, right), bottom], 1
            )
            inner = inner + torch.stack([self.shift.right / size[1], self.shift.down / size[0]], 1).repeat(1, 2)
        sides = (shown[:, 2:] - shown[:, :2]).repeat(1, 2)
        return shown[:, :2].repeat(1, 2) + inner * sides, flipped

    def images(self, pixels: Tensor) -> Tensor:
        """Transform images, uint8 B, C, H, W, to float B, C, *size from 0 to 1, padded with mid-grey."""
        pixels = pixels if self.shift is None else self.shift.pixels(pixels)
        images = pixels.float().div_(255)
        if self.resampled:
            return resample(images, self.moves, self.size)
        if self.turned:
            moved = (self.moves != identity(images)).flatten(1).any(1)
            return change(images, moved, resample_moved, moved, self.moves)
        return images

    def mask(self, mask: Tensor) -> Tensor:
        """Transform masks to int64 B, *size or B, layers, *size, padded with OUTSIDE.

        Args:
            mask: B, H, W or B, layers, H, W.
        """
        if mask.ndim == 3:
            return self.mask(mask[:, None])[:, 0]
        if self.shift is not None:
            mask = self.shift.pixels(mask)
        if self.resampled or self.turned or self.later is not None:
            moves = self.whole.expand(len(mask), -1, -1)[:, :2]
            grid = F.affine_grid(moves, [len(mask), 1, *self.size], align_corners=False)
            # Values are shifted by one, so that zero padding is recognised.
            found = F.grid_sample((mask + 1).float(), grid, mode="nearest", padding_mode="zeros", align_corners=False)
            mask = found.round().long() - 1
        return mask.long()

    def boxes(self, boxes: Tensor, size: tuple[int, int], *, cut: bool = True) -> Tensor:
        """Transform boxes, B, M, 4, clipped at the border; boxes outside get zero area.

        Args:
            boxes: left, top, right and bottom in pixels of the input; zero area means no box.
            size: height and width of the input.
        """
        height, width = size
        if self.shift is not None:
            boxes = self.shift.boxes(boxes, width)
        x = torch.stack([boxes[..., 0], boxes[..., 2], boxes[..., 0], boxes[..., 2]], dim=-1) / width * 2 - 1
        y = torch.stack([boxes[..., 1], boxes[..., 1], boxes[..., 3], boxes[..., 3]], dim=-1) / height * 2 - 1
        corners = torch.stack([x, y, torch.ones_like(x)], dim=-1)  # B, M, 4, 3
        back = inverse(self.whole.expand(len(boxes), -1, -1).float())
        found = (corners[..., None, :] * back[:, None, None]).sum(-1)[..., :2].add(1)
        high, wide = self.size
        found = torch.stack([found[..., 0] * (wide / 2), found[..., 1] * (high / 2)], dim=-1)
        moved = torch.cat([found.amin(-2), found.amax(-2)], dim=-1)
        return moved.clamp(min=0).minimum(moved.new_tensor([wide, high] * 2)) if cut else moved


def draw_uniforms(keys: Tensor) -> Tensor:
    """Return all draws of the images, B, PURPOSES, in [0, 1)."""
    return uniform(keys[:, None], torch.arange(PURPOSES, device=keys.device))


def mirror(index: Tensor, length: int) -> Tensor:
    """Reflect indices outside of 0 .. length - 1, without repeating the edge."""
    if length == 1:
        return torch.zeros_like(index)
    index = index.abs() % (2 * length - 2)
    return torch.where(index < length, index, 2 * length - 2 - index)


def identity(like: Tensor) -> Tensor:
    """Return the identity matrix, 1, 3, 3."""
    return torch.eye(3, device=like.device)[None]


def resized_crops(draws: Tensor, config: AugmentConfig) -> Tensor:
    """Return matrices of random resized crops, from output to input coordinates, B, 3, 3."""
    height, width = crop_sides(draws, config)
    centre_x = (2 * draws[:, LEFT] - 1) * (1 - width)
    centre_y = (2 * draws[:, TOP] - 1) * (1 - height)
    return matrices(width, 0, centre_x, 0, height, centre_y)


def crop_sides(draws: Tensor, config: AugmentConfig) -> tuple[Tensor, Tensor]:
    """Return height and width of random crops as fractions of a square image, at most one."""
    low, high = config.scale
    area = low + draws[:, AREA] * (high - low)
    narrow, wide = (math.log(side) for side in config.ratio)
    ratio = torch.exp(narrow + draws[:, RATIO] * (wide - narrow))
    return (area / ratio).sqrt().clamp(max=1), (area * ratio).sqrt().clamp(max=1)


def matrices(*entries: Tensor | float) -> Tensor:
    """Build matrices, B, 3, 3, from their first two rows of scalars or tensors B."""
    like = next(entry for entry in entries if isinstance(entry, Tensor))
    rows = [entry if isinstance(entry, Tensor) else torch.full_like(like, entry) for entry in entries]
    zero, one = torch.zeros_like(like), torch.ones_like(like)
    return torch.stack([*rows, zero, zero, one], dim=-1).unflatten(-1, (3, 3))


def inverse(moves: Tensor) -> Tensor:
    """Invert affine matrices, B, 3, 3; unlike `torch.linalg.inv`, without device synchronisation."""
    (a, b, c), (d, e, f) = (moves[:, row].unbind(-1) for row in (0, 1))
    area = a * e - b * d
    return matrices(e / area, -b / area, (b * f - c * e) / area, -d / area, a / area, (c * d - a * f) / area)


def resample(images: Tensor, moves: Tensor, size: tuple[int, int]) -> Tensor:
    """Resample images bilinearly, padded with mid-grey."""
    moves = moves.expand(len(images), -1, -1)[:, :2]
    grid = F.affine_grid(moves, [len(images), images.shape[1], *size], align_corners=False)
    return F.grid_sample(images - 0.5, grid, mode="bilinear", padding_mode="zeros", align_corners=False) + 0.5


def resample_moved(images: Tensor, moved: Tensor, moves: Tensor) -> Tensor:
    """Resample the moved images only, so that the others keep their exact values, which matters for posterize."""
    return torch.where(
        moved[:, None, None, None], resample(images, moves, (images.shape[-2], images.shape[-1])), images
    )


def change(images: Tensor, changed: Tensor, function: Callable[..., Tensor], *others: Tensor) -> Tensor:
    """Return function(images, *others).

    Args:
        images: B, ...
        changed: bool, B: False where the function is the identity; a CPU skips these images.
        function: applied to images and `others`, independently for each image.
        others: its further arguments, B, ...
    """
    if images.device.type != "cpu":
        return function(images, *others)
    places = changed.nonzero()[:, 0]
    if not len(places):
        return images
    result = images.clone()
    result[places] = function(images[places], *(other[places] for other in others))
    return result


# RandAugment: one operation per image; 0 is the identity, 1-5 are spatial, 6-13 change colours.
OPERATIONS = 14


def rand_draws(draws: Tensor, purpose: int, config: AugmentConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Return the operation of each image, its magnitude from 0 to 1, and its sign."""
    operation = (draws[:, purpose] * OPERATIONS).long()
    if config.rand_prob < 1:
        operation = torch.where(draws[:, SPARE + (purpose - RAND) // 4] < config.rand_prob, operation, 0)
    # A normal deviate by the Box-Muller transform
    radius = (-2 * (1 - draws[:, purpose + 1]).log()).sqrt()
    normal = radius * (2 * math.pi * draws[:, purpose + 2]).cos()
    strength = ((config.rand_magnitude + config.rand_spread * normal) / 10).clamp(0, 1)
    sign = torch.where(draws[:, purpose + 3] < 0.5, -1.0, 1.0)
    return operation, strength, sign


def rand_moves(crop: Tensor, draws: Tensor, config: AugmentConfig, operations: int, *, aspect: float = 1.0) -> Tensor:
    """Return crops, B, 3, 3, combined with RandAugment's spatial operations; `aspect` is height / width."""
    for operation in range(operations):
        crop = crop @ rand_geometry(draws, RAND + 4 * operation, config, aspect=aspect)
    return crop


def rand_geometry(draws: Tensor, purpose: int, config: AugmentConfig, *, aspect: float = 1.0) -> Tensor:
    """Return the matrices of rotations by up to 30 degrees, shears by 0.3, shifts by 0.45 of the side."""
    operation, strength, sign = rand_draws(draws, purpose, config)
    amount = strength * sign

    def of(number: int, largest: float) -> Tensor:
        return torch.where(operation == number, amount * largest, 0.0)

    angle = of(1, math.pi / 6)
    cos, sin = angle.cos(), angle.sin()
    across, down = (of(2, 0.3) - sin) * aspect, (sin + of(3, 0.3)) / aspect
    return matrices(cos, across, of(4, 0.9), down, cos, of(5, 0.9))
