"""Batched equivalents of timm's RandAugment `rand-m9-mstd0.5-inc1` and of its random erasing mode `pixel`.

Images are float tensors of byte values, rounded after every operation as PIL does; most operations are a lookup table
of 256 values for each channel. Every draw is a function of the image's key (see `draws`).
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..settings import AugmentConfig
from .draws import MASK, hash32, key, uniform
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
PER_STEP = 6  # draws for an operation
NONE = -1


@dataclass(frozen=True)
class Step:
    """One operation for each image of a batch."""

    operation: Tensor  # index in OPERATIONS, or NONE, B int64
    level: Tensor  # magnitude from 0 to 1, B
    sign: Tensor  # direction, -1 or 1, B
    cubic: Tensor  # whether to resample bicubically, not bilinearly, B bool

    @classmethod
    def draw(cls, keys: Tensor, number: int, config: AugmentConfig) -> "Step":
        """Draw the `number`-th operation of images with the given keys, B."""
        purposes = PURPOSES + PER_STEP * number + torch.arange(PER_STEP, device=keys.device)
        chosen, applied, radius, angle, side, interpolation = uniform(keys[:, None], purposes).unbind(1)
        operation = torch.where(applied < config.rand_prob, (chosen * len(OPERATIONS)).long(), NONE)
        normal = (-2 * (1 - radius).log()).sqrt() * (2 * math.pi * angle).cos()  # Box-Muller transform
        level = ((config.rand_magnitude + config.rand_spread * normal) / 10).clamp(0, 1)
        share = {"bilinear": 0.0, "random": 0.5, "bicubic": 1.0}[config.rand_interpolation]
        return cls(operation, level, torch.where(side < 0.5, -1.0, 1.0), interpolation < share)

    @property
    def factor(self) -> Tensor:
        """Factor of contrast, brightness, colour and sharpness, B."""
        return (1 + 0.9 * self.level * self.sign).clamp(min=0.1)

    @staticmethod
    def farthest(aspect: float) -> tuple[float, float]:  # noqa: ARG004
        """Return the largest translations, right and down, in coordinates from -1 to 1."""
        return 0.9, 0.9

    def moves(self, aspect: float = 1.0) -> Tensor:
        """Return matrices from output to input coordinates, -1 to 1; B, 3, 3.

        Args:
            aspect: height / width of the images.
        """
        amount = self.level * self.sign

        def of(name: str, largest: float) -> Tensor:
            return torch.where(self.operation == NUMBER[name], amount * largest, 0.0)

        angle = of("Rotate", math.pi / 6)
        right, below = self.farthest(aspect)
        across, down = of("ShearX", 0.3), of("ShearY", 0.3)  # relative to the first row and column, not to the centre
        cos, sin = angle.cos(), angle.sin()
        return matrices(
            cos,
            (across - sin) * aspect,
            across * aspect + of("TranslateX", right),
            (sin + down) / aspect,
            cos,
            down / aspect + of("TranslateY", below),
        )

    def __call__(self, images: Tensor, fill: Tensor) -> Tensor:
        """Apply the operations to images, float byte values B, C, H, W, padded with `fill`, C, 1, 1."""
        operation, factor = self.operation, self.factor
        images = change(images, self._among("AutoContrast", "Brightness"), tabulate, operation, self.level, factor)
        images = change(images, self._among("Equalize", "Equalize"), equalize, operation)
        images = change(images, self._among("Color", "Sharpness"), enhance, operation, factor)
        moved, aspect = self._among("Rotate", "TranslateY"), images.shape[-2] / images.shape[-1]
        return change(images, moved, partial(move, fill), moved, self.moves(aspect), self.cubic)

    def _among(self, first: str, last: str) -> Tensor:
        return (self.operation >= NUMBER[first]) & (self.operation <= NUMBER[last])


def tabulate(images: Tensor, operation: Tensor, level: Tensor, factor: Tensor) -> Tensor:
    """Apply the operations that are lookup tables; images with other operations are unchanged."""
    operation, level, factor = (each[:, None, None] for each in (operation, level, factor))  # B, 1, 1
    value = torch.arange(256, device=images.device)
    low, high = (extreme.flatten(2).long() for extreme in images.flatten(2).aminmax(dim=2, keepdim=True))
    exact = torch.float32 if images.device.type == "mps" else torch.float64  # bit-exact with PIL
    scale = torch.full_like(low, 255, dtype=exact) / (high - low).clamp(min=1)
    stretched = (value * scale - low * scale).clamp(0, 255).long()
    kept = torch.pow(2, 4 + (4 * level).long())  # values that posterize maps to one
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
    """Equalize each channel's histogram, where that is the operation."""
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
    if min(images.shape[-2:]) > 2:  # PIL's filter keeps the border
        inner = images[:, :, 1:-1, 1:-1]
        smooth[:, :, 1:-1, 1:-1] = ((9 * F.avg_pool2d(images, 3, 1) + 4 * inner) / 13 + 0.5).floor()
    other = torch.where(operation == NUMBER["Color"], luminance(images), smooth)
    chosen = (operation == NUMBER["Color"]) | (operation == NUMBER["Sharpness"])
    return torch.where(chosen, _blend(other, images, factor), images)


def move(fill: Tensor, images: Tensor, moved: Tensor, moves: Tensor, cubic: Tensor) -> Tensor:
    """Resample images as PIL does: bicubic over 4 x 4 pixels with a = -1, padded with `fill`."""
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
    result = torch.where(inside[:, None], (result + 1e-3).floor().clamp(0, 255), fill)  # + 1e-3 against rounding
    return torch.where(moved[:, None, None, None], result, images)


def _taps(place: Tensor, length: int, cubic: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the four neighbouring pixels along one axis, and their weights."""
    before = (place - 0.5).floor()
    d = place - 0.5 - before
    pixels = [(before + tap).clamp(0, length - 1).long() for tap in (-1, 0, 1, 2)]
    none = torch.zeros_like(d)
    linear = (none, 1 - d, d, none)
    curved = (-d + 2 * d**2 - d**3, 1 - 2 * d**2 + d**3, d + d**2 - d**3, d**3 - d**2)
    chosen = cubic[:, None, None]
    return pixels, [torch.where(chosen, a, b) for a, b in zip(curved, linear, strict=True)]


def _blend(other: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Interpolate from `other` at factor 0 to `images` at factor 1, truncated to integers."""
    return (other + factor * (images - other)).clamp(0, 255).floor()


def look_up(table: Tensor, images: Tensor) -> Tensor:
    """Map the values of images, B, C, H, W, by a table, B, C, 256."""
    return table.gather(2, images.flatten(2).long()).to(images.dtype).view_as(images)


def luminance(images: Tensor) -> Tensor:
    """Return grey images, B, 1, H, W, in integers with PIL's weights."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True).floor()
    red, green, blue = images.unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536).floor()[:, None]


AREA, ASPECT = (0.02, 1 / 3), (0.3, 1 / 0.3)  # ranges of area and of height / width
ATTEMPTS = 10  # boxes drawn until one fits
PIXELS, NOISE = 0x9E1, 0x9E2  # purposes of the draws


def erase_pixels(images: Tensor, keys: Tensor, probability: float) -> Tensor:
    """Random erasing: fill a box with standard normal noise, in a share of normalised images.

    Args:
        images: B, C, H, W.
        keys: the images' random keys, B int64.
        probability: probability of erasing; an image is unchanged if no box fits.
    """
    inside = draw_boxes(keys, probability, (images.shape[-2], images.shape[-1]))
    return change(images, inside.flatten(1).any(1), fill_with_noise, inside, keys)


def draw_boxes(keys: Tensor, probability: float, size: tuple[int, int]) -> Tensor:
    """Return a mask of the pixels to erase, bool B, H, W."""
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
    """Replace the pixels inside by noise."""
    count = images[0].numel()
    places = hash32(torch.arange(count, device=keys.device) & MASK)
    bits = hash32(places ^ key(keys, NOISE)[:, None])  # B, C * H * W: 32 bits, from which two numbers are made
    radius = (-2 * (((bits >> 16) + 0.5) * 2.0**-16).log()).sqrt()
    noise = radius * ((bits & 0xFFFF) * (2 * math.pi * 2.0**-16)).cos()
    return torch.where(inside[:, None], noise.view_as(images).to(images.dtype), images)
