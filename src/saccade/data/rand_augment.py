"""RandAugment as timm's `rand-m9-mstd0.5-inc1` and erasing as its `pixel` mode do it, on whole batches.

Images are bytes in floats, rounded after every operation as PIL rounds; most operations are a table of 256 values for
each channel. Every draw is a function of the image's key (see `draws`).
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..settings import AugmentConfig
from .draws import MASK, key, stir, uniform
from .geometry import PURPOSES, change, matrices

OPERATIONS = (
    "AutoContrast",
    "Invert",
    "Posterize",
    "Solarize",
    "SolarizeAdd",
    "Contrast",
    "Brightness",
    "Equalize",
    "Color",
    "Sharpness",
    "Rotate",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
)
NUMBER = {name: number for number, name in enumerate(OPERATIONS)}
PER_STEP = 6  # draws of an operation
NONE = -1


@dataclass(frozen=True)
class Step:
    """One operation of each image."""

    operation: Tensor  # its place in OPERATIONS, or NONE, B int64
    level: Tensor  # how strong, from 0 to 1, B
    sign: Tensor  # to which side, -1 or 1, B
    cubic: Tensor  # whether an image that is moved is resampled bicubically, not bilinearly, B bool

    @classmethod
    def draw(cls, keys: Tensor, number: int, config: AugmentConfig) -> "Step":
        """Draw the operation of that number, of images with these keys, B."""
        purposes = PURPOSES + PER_STEP * number + torch.arange(PER_STEP, device=keys.device)
        chosen, applied, radius, angle, side, interpolation = uniform(keys[:, None], purposes).unbind(1)
        operation = torch.where(applied < config.rand_prob, (chosen * len(OPERATIONS)).long(), NONE)
        normal = (-2 * (1 - radius).log()).sqrt() * (2 * math.pi * angle).cos()  # by Box and Muller
        level = ((config.rand_magnitude + config.rand_spread * normal) / 10).clamp(0, 1)
        share = {"bilinear": 0.0, "random": 0.5, "bicubic": 1.0}[config.rand_interpolation]
        return cls(operation, level, torch.where(side < 0.5, -1.0, 1.0), interpolation < share)

    def moves(self) -> Tensor:
        """Return matrices from the output's square, -1 to 1, to the input's, B, 3, 3."""
        amount = self.level * self.sign

        def of(name: str, largest: float) -> Tensor:
            return torch.where(self.operation == NUMBER[name], amount * largest, 0.0)

        angle = of("Rotate", math.pi / 6)
        across, down = of("ShearX", 0.3), of("ShearY", 0.3)  # from the first row and column, not from the middle
        cos, sin = angle.cos(), angle.sin()
        return matrices(
            cos, across - sin, across + of("TranslateX", 0.9), sin + down, cos, down + of("TranslateY", 0.9)
        )

    def __call__(self, images: Tensor, fill: Tensor) -> Tensor:
        """Return images, bytes in floats B, C, S, S, after their operation; `fill`, C, 1, 1, lies outside of them."""
        operation, factor = self.operation, (1 + 0.9 * self.level * self.sign).clamp(min=0.1)
        images = change(images, self._among("AutoContrast", "Brightness"), tabulate, operation, self.level, factor)
        images = change(images, self._among("Equalize", "Equalize"), equalize, operation)
        images = change(images, self._among("Color", "Sharpness"), enhance, operation, factor)
        moved = self._among("Rotate", "TranslateY")
        return change(images, moved, partial(move, fill), moved, self.moves(), self.cubic)

    def _among(self, first: str, last: str) -> Tensor:
        return (self.operation >= NUMBER[first]) & (self.operation <= NUMBER[last])


def tabulate(images: Tensor, operation: Tensor, level: Tensor, factor: Tensor) -> Tensor:
    """Apply operations that map each channel's values by a table; others change nothing."""
    operation, level, factor = (each[:, None, None] for each in (operation, level, factor))  # B, 1, 1
    value = torch.arange(256, device=images.device)
    low, high = (extreme.flatten(2).long() for extreme in images.flatten(2).aminmax(dim=2, keepdim=True))
    exact = torch.float32 if images.device.type == "mps" else torch.float64  # as PIL reckons, to the last bit
    scale = torch.full_like(low, 255, dtype=exact) / (high - low).clamp(min=1)
    stretched = (value * scale - low * scale).clamp(0, 255).long()
    kept = torch.pow(2, 4 + (4 * level).long())  # values that posterizing makes one
    add = (110 * level).long()
    mean = (luminance(images).mean((2, 3)) + 0.5).floor()[:, :, None]
    found = value.expand(len(images), images.shape[1], -1)
    for name, table in (
        ("AutoContrast", torch.where(high > low, stretched, value)),
        ("Invert", 255 - value),
        ("Posterize", value // kept * kept),
        ("Solarize", torch.where(value < 256 - (256 * level).long(), value, 255 - value)),
        ("SolarizeAdd", torch.where(value < 128, (value + add).clamp(max=255), value)),
        ("Contrast", _blend(mean, value, factor).long()),
        ("Brightness", _blend(torch.zeros_like(mean), value, factor).long()),
    ):
        found = torch.where(operation == NUMBER[name], table, found)
    return look_up(found, images)


def equalize(images: Tensor, operation: Tensor) -> Tensor:
    """Spread each channel's values evenly, where that is the operation."""
    places = images.flatten(2).long()
    counts = torch.zeros(*places.shape[:2], 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, places, torch.ones_like(places))
    value = torch.arange(256, device=images.device)
    last = counts.gather(2, places.amax(2, keepdim=True))
    step = (places.shape[2] - last) // 255
    table = ((step // 2 + counts.cumsum(2) - counts) // step.clamp(min=1)).clamp(max=255)
    chosen = (operation == NUMBER["Equalize"])[:, None, None] & (step > 0)
    return look_up(torch.where(chosen, table, value), images)


def enhance(images: Tensor, operation: Tensor, factor: Tensor) -> Tensor:
    """Change saturation or sharpness, where that is the operation."""
    operation, factor = operation[:, None, None, None], factor[:, None, None, None]
    smooth = images.clone()
    if min(images.shape[-2:]) > 2:  # the border is kept
        inner = images[:, :, 1:-1, 1:-1]
        smooth[:, :, 1:-1, 1:-1] = ((9 * F.avg_pool2d(images, 3, 1) + 4 * inner) / 13 + 0.5).floor()
    other = torch.where(operation == NUMBER["Color"], luminance(images), smooth)
    chosen = (operation == NUMBER["Color"]) | (operation == NUMBER["Sharpness"])
    return torch.where(chosen, _blend(other, images, factor), images)


def move(fill: Tensor, images: Tensor, moved: Tensor, moves: Tensor, cubic: Tensor) -> Tensor:
    """Read images at moved places as PIL does: cubic by four by four pixels with a = -1, `fill` outside."""
    height, width = images.shape[-2:]
    grid = F.affine_grid(moves[:, :2], list(images.shape), align_corners=False)
    x, y = (grid[..., 0] + 1) * (width / 2), (grid[..., 1] + 1) * (height / 2)  # B, H, W
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    columns, across = _taps(x, width, cubic)
    rows, down = _taps(y, height, cubic)
    flat, result = images.flatten(2), torch.zeros_like(images)
    for row, share in zip(rows, down, strict=True):
        line = torch.zeros_like(images)
        for column, part in zip(columns, across, strict=True):
            place = (row * width + column).flatten(1)[:, None].expand(-1, images.shape[1], -1)
            line += part[:, None] * flat.gather(2, place).view_as(images)
        result += share[:, None] * line
    result = torch.where(inside[:, None], (result + 1e-3).floor().clamp(0, 255), fill)  # a little, against rounding
    return torch.where(moved[:, None, None, None], result, images)


def _taps(place: Tensor, length: int, cubic: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the four pixels around places, along one axis, and their weights."""
    before = (place - 0.5).floor()
    d = place - 0.5 - before
    pixels = [(before + tap).clamp(0, length - 1).long() for tap in (-1, 0, 1, 2)]
    none = torch.zeros_like(d)
    linear = (none, 1 - d, d, none)
    curved = (-d + 2 * d**2 - d**3, 1 - 2 * d**2 + d**3, d + d**2 - d**3, d**3 - d**2)
    chosen = cubic[:, None, None]
    return pixels, [torch.where(chosen, a, b) for a, b in zip(curved, linear, strict=True)]


def _blend(other: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Return `other` at factor 0 and the images at factor 1, cut to whole numbers of bytes."""
    return (other + factor * (images - other)).clamp(0, 255).floor()


def look_up(table: Tensor, images: Tensor) -> Tensor:
    """Return images, B, C, H, W, with their values replaced by a table, B, C, 256."""
    return table.gather(2, images.flatten(2).long()).to(images.dtype).view_as(images)


def luminance(images: Tensor) -> Tensor:
    """Return the grey of images, B, 1, H, W, in whole numbers, as PIL weighs the colours."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True).floor()
    red, green, blue = images.unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536).floor()[:, None]


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
