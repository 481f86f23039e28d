"""Framing by sides: the shorter side is resized to one length, the longer one to at most another, on few canvases."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ..settings import AugmentConfig
from .draws import uniform
from .framing import GREY, Box, Encoded, Framing
from .geometry import AREA, LEFT, OUTSIDE, RATIO, TOP
from .targets import Targets

RATIOS = (4 / 3, 16 / 9)  # of canvases that are neither square nor the longest
STEP = 32  # their longer side is a multiple of it
MOVED = 8192  # first purpose of draws of other places for a crop
PADDING = {"image": GREY, "mask": OUTSIDE}


@dataclass(frozen=True)
class SideFraming(Framing):
    """Resize images of any size to a shorter side of `img_size`, but a longer side of at most `longest`.

    Images are centred on one of at most seven canvases, so that batches have few shapes. A canvas is as short as
    `img_size` and no longer than `longest`, so `fitted` finds the same resize factor again from the canvas alone.
    """

    fit: bool = True
    longest: int = 0  # most pixels of the longer side
    # training: range of the factor by which that size is multiplied; None: no crops
    scale: tuple[float, float] | None = None
    uniform_scale: bool = False  # draw it uniformly; else log-uniformly
    crop: int | None = None  # training: side of square crops; None: crops as large as the canvas

    @property
    def pixels(self) -> int:
        """Number of pixels of the second longest canvas, or of a crop."""
        return self.crop**2 if self.crop else self.img_size * self.lengths[-2:][0]

    @property
    def drawn(self) -> bool:
        """Whether training samples are cropped at random when they are read: always."""
        return True

    @property
    def lengths(self) -> list[int]:
        """Lengths of the canvases' longer sides."""
        stepped = [math.ceil(self.img_size * ratio / STEP) * STEP for ratio in RATIOS]
        return sorted({self.img_size, self.longest, *(side for side in stepped if side < self.longest)})

    def resize_factor(self, height: int, width: int) -> float:
        """Return the factor by which an image is resized in test."""
        return min(self.img_size / min(height, width), self.longest / max(height, width))

    def canvas(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the framed image, for an image of the given size."""
        if self.crop:
            return self.crop, self.crop
        long = max(round(max(height, width) * self.resize_factor(height, width)), 1)
        long = self.lengths[bisect.bisect_left(self.lengths, long)]
        return (self.img_size, long) if width >= height else (long, self.img_size)

    def box(self, height: int, width: int, word: int = 0) -> Box:
        """Return the box of the image that the canvas shows; of a random factor and place in training."""
        if self.scale is None or self.config is None:
            return super().box(height, width, word)
        low, high = self.scale if self.uniform_scale else (math.log(side) for side in self.scale)
        factor = low + uniform(word, AREA) * (high - low)
        factor = factor if self.uniform_scale else math.exp(factor)
        narrow, wide = (0.25 * math.log(side) for side in self.config.ratio)  # as `scaled_crops`
        stretch = math.exp(narrow + uniform(word, RATIO) * (wide - narrow))
        # A detector's longer side has the same limit at each factor, as in the papers' code.
        most = self.longest * (factor if self.crop else 1)
        factor = min(self.img_size * factor / min(height, width), most / max(height, width))
        tall, across = self.canvas(height, width)
        return place_box((height, width), (tall / factor / stretch, across / factor * stretch), word, (LEFT, TOP))

    def moved(self, box: Box, size: tuple[int, int], word: int, number: int) -> Box:
        """Return a box at another random place, the `number`-th, in an image of the given height and width."""
        shape = box[3] - box[1], box[2] - box[0]
        return place_box(size, shape, word, (MOVED + 2 * number, MOVED + 2 * number + 1))

    def boxes(self, boxes: np.ndarray, box: Box, size: tuple[int, int]) -> np.ndarray:
        """Transform boxes as `Framing.boxes`; those of crops are not clipped, so that hidden objects can be told."""
        if self.scale is None:
            return super().boxes(boxes, box, size)
        tall, across = self.canvas(*size)
        scale = np.array([across / (box[2] - box[0]), tall / (box[3] - box[1])] * 2)
        moved = np.asarray(boxes, dtype=np.float64).reshape(-1, 4) - np.array(box[:2] * 2)
        return (moved * scale).astype(np.float32)

    def _fit(self, image: Image.Image, box: Box, how: Image.Resampling, around: int | tuple[int, ...]) -> Image.Image:
        if self.scale is None:
            return super()._fit(image, box, how, around)
        tall, wide = self.canvas(image.height, image.width)
        left, top, right, bottom = box
        across, down = wide / (right - left), tall / (bottom - top)
        shown = max(left, 0.0), max(top, 0.0), min(right, image.width), min(bottom, image.height)
        begin = round((shown[0] - left) * across), round((shown[1] - top) * down)
        end = round((shown[2] - left) * across), round((shown[3] - top) * down)
        size = max(end[0] - begin[0], 1), max(end[1] - begin[1], 1)
        framed = Image.new(image.mode, (wide, tall), around)
        framed.paste(image.resize(size, how, box=shown, reducing_gap=3.0), begin)
        return framed


def random_crops(framing: Framing, config: AugmentConfig, **drawn: Any) -> Framing:
    """Return the framing of training samples: crops by `drawn`, where they are made when samples are read."""
    return replace(framing, config=config, **drawn) if isinstance(framing, SideFraming) else framing


def canvas_groups(framing: Framing, targets: Targets) -> Tensor | None:
    """Return the proportions of each sample's canvas, by which batches are sorted; None if there is one or unknown.

    Args:
        targets: those with `sizes` know the heights and widths of their images, M, 2; 0 where they are missing.
    """
    sizes = getattr(targets, "sizes", ())
    if not len(sizes) or not isinstance(framing, SideFraming):
        return None
    canvases = [framing.canvas(*size) if all(size) else (1, 1) for size in sizes[targets.rows].tolist()]
    return torch.tensor([wide / tall for tall, wide in canvases])


def place_box(size: tuple[int, int], shape: tuple[float, float], word: int, purposes: tuple[int, int]) -> Box:
    """Return a box of a shape at a random place of an image, or around it where it is larger; all height, width."""
    left, top = uniform(word, purposes[0]) * (size[1] - shape[1]), uniform(word, purposes[1]) * (size[0] - shape[0])
    return left, top, left + shape[1], top + shape[0]


def to_one_shape(samples: Sequence[Encoded]) -> list[Encoded]:
    """Pad images and masks of several shapes to the square that holds all of them; others are unchanged."""
    sides = {tuple(sample["image"].shape[-2:]) for sample in samples}
    if len(sides) == 1:
        return list(samples)
    side = max(max(shape) for shape in sides)

    def pad(name: str, part: Tensor) -> Tensor:
        height, width = part.shape[-2:]
        return F.pad(part, (0, side - width, 0, side - height), value=PADDING[name])

    return [sample | {name: pad(name, sample[name]) for name in PADDING if name in sample} for sample in samples]
