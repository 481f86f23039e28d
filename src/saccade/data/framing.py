"""How a sample of any size becomes a square one: decoded on the host, image, mask and boxes by the same frame."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

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
GREY = 128  # around an image that does not fill its square
Encoded = dict[str, Tensor]  # a sample as a batch holds it, without the batch's dimension


class Encoder(Protocol):
    """What makes tensors of samples and a batch of these, in the processes that read."""

    def __call__(self, sample: Sample, word: int = 0) -> Encoded:
        """Return a sample as tensors; `word` is the key of its draws."""

    def collate(self, samples: list[Encoded]) -> dict[str, Tensor]:
        """Return samples as a batch."""


@dataclass(frozen=True)
class Framing:
    """How an image of any size becomes a square one."""

    img_size: int  # side of the square
    config: AugmentConfig | None = None  # the random crops of training; None takes the middle
    # side the shorter one is brought to before the middle is taken, where that leaves enough pixels
    shorter: int | None = None
    channels: int = 3  # 3, or 1 to make images grey
    fit: bool = False  # show all of an image, the rest of the square grey, and say nothing of it in a mask

    @property
    def least(self) -> int:
        """Short side, in pixels, from which on a larger image shows no more: no crop has then to be enlarged.

        The middle is always made smaller; twice its side lets the resampling, not the decoder, choose what is kept.
        """
        if self.fit:
            return NEVER_SMALLER  # than its mask
        if self.config is None or self.config.crop != "resized":
            return 2 * (self.shorter or self.img_size)
        narrowest = min(self.config.ratio[0], 1 / self.config.ratio[1], 1.0)
        return math.ceil(self.img_size / math.sqrt(max(self.config.scale[0] * narrowest, 1e-6)))

    def __call__(self, image: np.ndarray, word: int = 0) -> Tensor:
        """Return an image, H, W, C, as uint8 C, img_size, img_size; `word` is the key of its draws."""
        return self.image(image, self.box(image.shape[0], image.shape[1], word))

    def box(self, height: int, width: int, word: int = 0) -> Box:
        """Return the part of an image that fills the square; it reaches beyond an image that is fitted in."""
        if self.fit:
            left, top, wide, high = fitted(height, width, self.img_size)
            across, down = width / wide, height / high
            return -left * across, -top * down, (self.img_size - left) * across, (self.img_size - top) * down
        if self.config is not None and self.config.crop == "resized":
            return random_box(height, width, word, self.config)
        return middle_box(height, width, self.img_size, self.shorter or self.img_size)

    def image(self, pixels: np.ndarray, box: Box) -> Tensor:
        """Return a part of an image, H, W, C, as uint8 C, img_size, img_size."""
        channels = pixels.shape[2]
        image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
        if self.fit:
            image = self._fit(image, Image.Resampling.BICUBIC, GREY if channels == 1 else (GREY,) * 3)
        elif self.config is None or self.config.crop != "resized":
            image = resample(image, (self.img_size, self.img_size), box)
        else:
            image = image.resize((self.img_size, self.img_size), Image.Resampling.BICUBIC, box=box, reducing_gap=3.0)
        if self.channels == 1 or channels == 1:
            image = image.convert("L" if self.channels == 1 else "RGB")
        array = np.asarray(image)
        return torch.from_numpy(np.array(array[None] if array.ndim == 2 else array.transpose(2, 0, 1)))

    def mask(self, mask: np.ndarray, box: Box) -> np.ndarray:
        """Return the same part of a mask, H, W or layers, H, W, to the nearest pixel, int64."""
        if mask.ndim == 3:
            return np.stack([self.mask(layer, box) for layer in mask])
        image = Image.fromarray(mask.astype(np.int32))  # PIL's mode I
        if self.fit:
            return np.asarray(self._fit(image, Image.Resampling.NEAREST, OUTSIDE), dtype=np.int64)
        return np.asarray(image.resize((self.img_size,) * 2, Image.Resampling.NEAREST, box=box), dtype=np.int64)

    def _fit(self, image: Image.Image, how: Image.Resampling, around: int | tuple[int, ...]) -> Image.Image:
        left, top, wide, high = fitted(image.height, image.width, self.img_size)
        square = Image.new(image.mode, (self.img_size, self.img_size), around)
        whole = (0, 0, *image.size)
        part = (
            resample(image, (wide, high), whole) if how is Image.Resampling.BICUBIC else image.resize((wide, high), how)
        )
        square.paste(part, (left, top))
        return square

    def boxes(self, boxes: np.ndarray, box: Box) -> np.ndarray:
        """Return boxes, M, 4, of the whole image in pixels of the square, cut at its border."""
        left, top, right, bottom = box
        scale = np.array([right - left, bottom - top] * 2) / self.img_size
        moved = (np.asarray(boxes, dtype=np.float64).reshape(-1, 4) - np.array([left, top] * 2)) / scale
        return moved.clip(0, self.img_size).astype(np.float32)


@dataclass(frozen=True)
class ImageEncoder:
    """Samples with an image: framed, with what the target has of `mask` and `boxes` by the same frame."""

    framing: Framing

    def __call__(self, sample: Sample, word: int = 0) -> Encoded:
        """Return a sample as tensors."""
        image, target = sample.inputs["image"], sample.target
        box = self.framing.box(image.shape[0], image.shape[1], word)
        found: Encoded = {"image": self.framing.image(image, box)}
        if isinstance(target, Mapping):
            moved = {"mask": self.framing.mask, "boxes": self.framing.boxes}
            for name, value in target.items():
                found[name] = torch.as_tensor(moved[name](value, box) if name in moved else value)
        elif target is not None:
            found["target"] = torch.as_tensor(target)
        return found

    def collate(self, samples: list[Encoded]) -> dict[str, Tensor]:
        """Return samples as a batch: each part stacked, so that all have to be of one shape."""
        return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def resample(image: Image.Image, size: tuple[int, int], box: Box) -> Image.Image:
    """Return a part of an image in another size: rows first, then columns, as exported graphs do it.

    Pillow left alone begins with either, by its version and the image's shape, and rounds to bytes in between.
    """
    left, top, right, bottom = box
    rows = image.resize((size[0], image.height), Image.Resampling.BICUBIC, box=(left, 0, right, image.height))
    return rows.resize(size, Image.Resampling.BICUBIC, box=(0, top, size[0], bottom))


def fitted(height: int, width: int, side: int) -> tuple[int, int, int, int]:
    """Return left, top, width and height of an image that is shown as a whole in the middle of a square."""
    scale = side / max(height, width)
    wide, high = max(round(width * scale), 1), max(round(height * scale), 1)
    return (side - wide) // 2, (side - high) // 2, wide, high


def unfit(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return what a fitted square, S, S, says of an image of some height and width, to the nearest pixel."""
    left, top, wide, high = fitted(*size, mask.shape[0])
    inside = Image.fromarray(np.ascontiguousarray(mask[top : top + high, left : left + wide]).astype(np.int32))
    return np.asarray(inside.resize(size[::-1], Image.Resampling.NEAREST)).astype(mask.dtype)


def random_box(height: int, width: int, word: int, config: AugmentConfig) -> Box:
    """Return a random part of an image, of random area and shape."""
    low, high = config.scale
    area = (low + uniform(word, AREA) * (high - low)) * height * width
    narrow, wide = (math.log(side) for side in config.ratio)
    ratio = math.exp(narrow + uniform(word, RATIO) * (wide - narrow))
    w, h = min(math.sqrt(area * ratio), width), min(math.sqrt(area / ratio), height)
    left, top = uniform(word, LEFT) * (width - w), uniform(word, TOP) * (height - h)
    return left, top, left + w, top + h


def middle_box(height: int, width: int, img_size: int, shorter: int) -> Box:
    """Return the square in the middle of an image that fills `img_size` pixels where its short side fills `shorter`.

    Only what there is to spare is cut off: an image of the asked size, or a smaller one, is taken to its border, and no
    larger one is cut to fewer pixels than are asked for.
    """
    short = min(height, width)
    side = max(short * (img_size / shorter), min(short, img_size))
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def resize_images(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Return images, B, C, H, W uint8, at another size."""
    if tuple(images.shape[-2:]) == size:
        return images
    parts = [F.interpolate(part.float(), size, mode="bicubic", antialias=True) for part in images.split(1024)]
    return torch.cat([part.round_().clamp_(0, 255).to(torch.uint8) for part in parts])
