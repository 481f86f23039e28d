"""Framing: crop or letterbox samples of any size to a square on the host, masks and boxes alike."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ..settings import AugmentConfig
from .draws import uniform
from .geometry import AREA, LEFT, OUTSIDE, RATIO, TOP
from .source import Sample

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels
NEVER_SMALLER = 2**30
LARGE, MOST = 2**20, 2**24  # pixels of a large image, and most pixels of several
GREY = 128  # letterbox padding
Encoded = dict[str, Tensor]  # an encoded sample, without a batch dimension


class Encoder(Protocol):
    """Turns samples into tensors and collates batches, in the reading processes."""

    def __call__(self, sample: Sample, word: int = 0) -> Encoded:
        """Return a sample as tensors; `word` is its random key."""

    def collate(self, samples: list[Encoded]) -> dict[str, Tensor]:
        """Collate samples into a batch."""


@dataclass(frozen=True)
class Framing:
    """Crop or letterbox images of any size to a square."""

    img_size: int  # side of the square
    config: AugmentConfig | None = None  # random crops of training; None: centre crop
    # length that the shorter side is resized to before the centre crop
    shorter: int | None = None
    channels: int = 3  # 3, or 1 for grey images
    fit: bool = False  # letterbox the whole image; padding is ignored in masks

    @property
    def pixels(self) -> int:
        """Number of pixels of a framed image, at most if there are several shapes."""
        return self.img_size**2

    @property
    def drawn(self) -> bool:
        """Whether letterboxed training samples are cropped at random when they are read, not on the device."""
        return False

    def canvas(self, height: int, width: int) -> tuple[int, int]:  # noqa: ARG002
        """Return height and width of the framed image, for an image of the given size."""
        return self.img_size, self.img_size

    @property
    def least(self) -> int:
        """Shortest side, in pixels, that images may be decoded at without upsampling any crop.

        For centre crops this is twice the side, so that resampling rather than the decoder determines quality.
        """
        if self.fit:
            return NEVER_SMALLER  # masks have the image's full size
        if self.config is None or self.config.crop != "resized":
            return 2 * (self.shorter or self.img_size)
        narrowest = min(self.config.ratio[0], 1 / self.config.ratio[1], 1.0)
        return math.ceil(self.img_size / math.sqrt(max(self.config.scale[0] * narrowest, 1e-6)))

    def __call__(self, image: np.ndarray, word: int = 0) -> Tensor:
        """Frame an image, H, W, C, as uint8 C, img_size, img_size; `word` is its random key."""
        return self.image(image, self.box(image.shape[0], image.shape[1], word))

    def box(self, height: int, width: int, word: int = 0) -> Box:
        """Return the box of the image that the square shows; with letterboxing it extends beyond the image."""
        if self.fit:
            canvas = self.canvas(height, width)
            left, top, wide, high = fitted(height, width, canvas)
            across, down = width / wide, height / high
            return -left * across, -top * down, (canvas[1] - left) * across, (canvas[0] - top) * down
        if self.config is not None and self.config.crop == "resized":
            return random_box(height, width, word, self.config)
        return middle_box(height, width, self.img_size, self.shorter or self.img_size)

    def image(self, pixels: np.ndarray, box: Box) -> Tensor:
        """Crop and resize an image, H, W, C, to uint8 C and the sides of `canvas`."""
        channels = pixels.shape[2]
        image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
        if self.fit:
            image = self._fit(image, box, Image.Resampling.BICUBIC, GREY if channels == 1 else (GREY,) * 3)
        elif self.config is None or self.config.crop != "resized":
            image = resample(image, (self.img_size, self.img_size), box)
        else:
            image = image.resize((self.img_size, self.img_size), Image.Resampling.BICUBIC, box=box, reducing_gap=3.0)
        if self.channels == 1 or channels == 1:
            image = image.convert("L" if self.channels == 1 else "RGB")
        array = np.asarray(image)
        return torch.from_numpy(np.array(array[None] if array.ndim == 2 else array.transpose(2, 0, 1)))

    def mask(self, mask: np.ndarray, box: Box) -> np.ndarray:
        """Crop and resize a mask, H, W or layers, H, W, by nearest neighbour, to int64."""
        if mask.ndim == 3:
            return np.stack([self.mask(layer, box) for layer in mask])
        image = Image.fromarray(mask.astype(np.int32))  # PIL's mode I
        if self.fit:
            return np.asarray(self._fit(image, box, Image.Resampling.NEAREST, OUTSIDE), dtype=np.int64)
        return np.asarray(image.resize((self.img_size,) * 2, Image.Resampling.NEAREST, box=box), dtype=np.int64)

    def _fit(
        self,
        image: Image.Image,
        box: Box,  # noqa: ARG002
        how: Image.Resampling,
        around: int | tuple[int, ...],
    ) -> Image.Image:
        canvas = self.canvas(image.height, image.width)
        left, top, wide, high = fitted(image.height, image.width, canvas)
        framed = Image.new(image.mode, canvas[::-1], around)
        whole = (0, 0, *image.size)
        part = (
            resample(image, (wide, high), whole) if how is Image.Resampling.BICUBIC else image.resize((wide, high), how)
        )
        framed.paste(part, (left, top))
        return framed

    def boxes(self, boxes: np.ndarray, box: Box, size: tuple[int, int]) -> np.ndarray:
        """Transform boxes, M, 4, of an image of `size` to pixels of the framed one, clipped at its border."""
        left, top, right, bottom = box
        sides = np.array(self.canvas(*size)[::-1] * 2)
        scale = np.array([right - left, bottom - top] * 2) / sides
        moved = (np.asarray(boxes, dtype=np.float64).reshape(-1, 4) - np.array([left, top] * 2)) / scale
        return moved.clip(0, sides).astype(np.float32)


@dataclass(frozen=True)
class ImageEncoder:
    """Frames images, and the target's `mask` and `boxes` alike."""

    framing: Framing

    def __call__(self, sample: Sample, word: int = 0) -> Encoded:
        """Return a sample as tensors."""
        image, target = sample.inputs["image"], sample.target
        size = (image.shape[0], image.shape[1])
        box = self.box(sample, size, word)
        found: Encoded = {"image": self.framing.image(image, box)}
        if isinstance(target, Mapping):
            moved: dict[str, Callable[..., Any]]
            moved = {"mask": self.framing.mask, "boxes": partial(self.framing.boxes, size=size)}
            for name, value in target.items():
                found[name] = torch.as_tensor(moved[name](value, box) if name in moved else value)
        elif target is not None:
            found["target"] = torch.as_tensor(target)
        return found

    def box(self, sample: Sample, size: tuple[int, int], word: int) -> Box:  # noqa: ARG002
        """Return the box of an image of the given height and width that is shown."""
        return self.framing.box(*size, word)

    def collate(self, samples: list[Encoded]) -> dict[str, Tensor]:
        """Stack samples, which have equal shapes, into a batch."""
        return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def at_once(shape: Sequence[int]) -> int:
    """Return how many images of a shape, C, H, W, are asked at once, so that memory does not grow with large ones."""
    size = math.prod(shape[-2:])
    return NEVER_SMALLER if size <= LARGE else max(MOST // size, 1)


def resample(image: Image.Image, size: tuple[int, int], box: Box) -> Image.Image:
    """Crop and resize an image: rows first, then columns, as exported graphs do.

    Pillow's own order depends on its version and the image's shape, and it rounds to bytes in between.
    """
    left, top, right, bottom = box
    rows = image.resize((size[0], image.height), Image.Resampling.BICUBIC, box=(left, 0, right, image.height))
    return rows.resize(size, Image.Resampling.BICUBIC, box=(0, top, size[0], bottom))


def fitted(height: int, width: int, canvas: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return left, top, width and height of an image letterboxed into a canvas of the given height and width."""
    scale = min(canvas[0] / height, canvas[1] / width)
    wide, high = max(round(width * scale), 1), max(round(height * scale), 1)
    return (canvas[1] - wide) // 2, (canvas[0] - high) // 2, wide, high


def unfit(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Undo letterboxing of a mask, H, W, by nearest neighbour, to the image's height and width."""
    left, top, wide, high = fitted(*size, (mask.shape[0], mask.shape[1]))
    inside = Image.fromarray(np.ascontiguousarray(mask[top : top + high, left : left + wide]).astype(np.int32))
    return np.asarray(inside.resize(size[::-1], Image.Resampling.NEAREST)).astype(mask.dtype)


def random_box(height: int, width: int, word: int, config: AugmentConfig) -> Box:
    """Return a random box of random area and aspect ratio."""
    low, high = config.scale
    area = (low + uniform(word, AREA) * (high - low)) * height * width
    narrow, wide = (math.log(side) for side in config.ratio)
    ratio = math.exp(narrow + uniform(word, RATIO) * (wide - narrow))
    w, h = min(math.sqrt(area * ratio), width), min(math.sqrt(area / ratio), height)
    left, top = uniform(word, LEFT) * (width - w), uniform(word, TOP) * (height - h)
    return left, top, left + w, top + h


def middle_box(height: int, width: int, img_size: int, shorter: int) -> Box:
    """Return the centre crop of `img_size` pixels of an image resized to a short side of `shorter`.

    Images that are not larger than `img_size` are not cropped, and no crop has fewer pixels than `img_size`.
    """
    short = min(height, width)
    side = max(short * (img_size / shorter), min(short, img_size))
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def resize_images(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize images, B, C, H, W uint8."""
    if tuple(images.shape[-2:]) == size:
        return images
    parts = [F.interpolate(part.float(), size, mode="bicubic", antialias=True) for part in images.split(1024)]
    return torch.cat([part.round_().clamp_(0, 255).to(torch.uint8) for part in parts])
