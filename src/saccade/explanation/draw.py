"""Overlays on images: heat maps, labels and proportions, in perceptually ordered, distinguishable colours."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

LABELS = 64  # distinguishable colours; further labels repeat them
GAP = 4  # pixels between images of a montage
CAPTION = 16  # pixels for a caption
MIN_SIDE = 224  # smallest longer side of an image with overlays


def heat_overlay(pixels: np.ndarray, heat: np.ndarray, *, alpha: float = 0.6, smooth: bool = True) -> np.ndarray:
    """Draw a heat map over a grey image.

    Args:
        pixels: H, W, 3 uint8.
        heat: h, w from 0 to 1, of any size; it is resized.
        alpha: opacity of the heat map, 0 to 1.
        smooth: interpolate between cells of the map; False shows the cells.
    """
    heat = upsample(np.clip(heat, 0.0, 1.0), *pixels.shape[:2], smooth=smooth)
    return overlay(to_grey(pixels), heat_colours(heat), alpha=alpha)


def label_overlay(pixels: np.ndarray, labels: np.ndarray, count: int, *, alpha: float = 0.6) -> np.ndarray:
    """Draw a label map over a grey image, with a colour for each label.

    Args:
        pixels: H, W, 3 uint8.
        labels: h, w of integers from 0 to count - 1.
        count: number of labels, which fixes the colour of each.
        alpha: opacity of the colours, 0 to 1.
    """
    labels = upsample(labels, *pixels.shape[:2], smooth=False)
    return overlay(to_grey(pixels), label_colours(count)[labels], alpha=alpha)


def overlay(pixels: np.ndarray, colours: np.ndarray, *, alpha: float) -> np.ndarray:
    """Blend colours over an image, both H, W, 3 uint8; alpha 1 shows only the colours."""
    mixed = pixels.astype(np.float64) * (1 - alpha) + colours.astype(np.float64) * alpha
    return np.rint(mixed).astype(np.uint8)


def to_grey(pixels: np.ndarray) -> np.ndarray:
    """Convert an image, H, W, 3, to grey, to distinguish it from overlays."""
    return np.asarray(Image.fromarray(pixels).convert("L").convert("RGB"))


def scale_heat(values: np.ndarray) -> np.ndarray:
    """Clip values at 0 and scale the largest to 1; zeros stay zeros."""
    values = np.nan_to_num(np.maximum(values, 0.0))
    top = values.max(initial=0.0)
    return values / top if top > 0 else values


def heat_colours(heat: np.ndarray) -> np.ndarray:
    """Return colours, ..., 3 uint8, of values 0..1: dark blue, magenta, light yellow, with increasing lightness."""
    index = np.rint(np.clip(np.nan_to_num(heat), 0.0, 1.0) * 255).astype(np.intp)
    return _heat_table()[index]


def share_colours(shares: np.ndarray) -> np.ndarray:
    """Mix red, green and blue, ..., 3 uint8, by three proportions along the last axis."""
    return np.rint(np.clip(shares, 0.0, 1.0) * 255).astype(np.uint8)


@cache
def label_colours(count: int) -> np.ndarray:
    """Return colours for labels, count, 3 uint8: each as far as possible from all before it."""
    side = np.linspace(0, 255, 10).round().astype(np.uint8)
    colours = np.stack(np.meshgrid(side, side, side, indexing="ij"), axis=-1).reshape(-1, 3)
    places = _to_oklab(colours)
    fit = (places[:, 0] > 0.35) & (np.hypot(places[:, 1], places[:, 2]) > 0.06)  # neither near black nor grey
    colours, places = colours[fit], places[fit]
    chosen = [int(np.hypot(places[:, 1], places[:, 2]).argmax())]
    nearest = np.linalg.norm(places - places[chosen[0]], axis=1)
    for _ in range(LABELS - 1):
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, np.linalg.norm(places - places[chosen[-1]], axis=1))
    table = colours[chosen][np.arange(count) % LABELS]
    table.setflags(write=False)
    return table


def upsample(values: np.ndarray, height: int, width: int, *, smooth: bool = True) -> np.ndarray:
    """Resize a map h, w, or h, w, channels.

    Args:
        values: values of any dtype; `smooth` needs a map h, w.
        smooth: bilinear; False repeats cells and keeps the dtype.
    """
    if smooth:
        image = Image.fromarray(np.ascontiguousarray(values, dtype=np.float32))
        return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    rows = (np.arange(height) + 0.5) * values.shape[0] / height
    columns = (np.arange(width) + 0.5) * values.shape[1] / width
    return values[rows.astype(np.intp)[:, None], columns.astype(np.intp)[None]]


def enlarge(pixels: np.ndarray) -> np.ndarray:
    """Enlarge a small image, H, W, 3 uint8, by repeating pixels, so that overlays are visible."""
    factor = -(-MIN_SIDE // max(pixels.shape[:2]))
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1) if factor > 1 else pixels


def montage(
    images: Sequence[np.ndarray], columns: int | None = None, *, captions: Sequence[str] | None = None
) -> np.ndarray:
    """Arrange images of any size on a white background.

    Args:
        images: each H, W, 3 uint8.
        columns: images in a row; default: all.
        captions: a short text above each image.
    """
    if not images or (captions is not None and len(captions) != len(images)):
        raise ValueError(
            f"got {len(images)} images and {len(captions or ())} captions; give at least one image, with one caption "
            "each"
        )
    columns = min(columns or len(images), len(images))
    rows = -(-len(images) // columns)
    head = CAPTION if captions is not None else 0
    height = max(p.shape[0] for p in images) + head
    width = max(p.shape[1] for p in images)
    page = Image.new("RGB", (columns * (width + GAP) - GAP, rows * (height + GAP) - GAP), "white")
    pen = ImageDraw.Draw(page)
    font = ImageFont.load_default(size=11)
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        left, top = column * (width + GAP), row * (height + GAP)
        if captions is not None:
            pen.text((left, top), _fit(captions[index], font, width), fill="black", font=font)
        page.paste(Image.fromarray(image), (left, top + head))
    return np.asarray(page)


def _fit(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """Truncate a text to a width in pixels."""
    while text and font.getlength(text) > width:
        text = text[:-1]
    return text


@cache
def _heat_table() -> np.ndarray:
    """256 colours whose lightness in OKLab increases linearly."""
    light = np.linspace(0.22, 0.95, 256)
    hue = np.radians(np.linspace(275, 455, 256))
    chroma = 0.04 + 0.16 * np.sin(np.pi * np.linspace(0.1, 0.9, 256))
    table = _from_oklab(np.stack([light, chroma * np.cos(hue), chroma * np.sin(hue)], axis=-1))
    table.setflags(write=False)
    return table


# OKLab, a perceptually uniform space: linear light -> cube roots of cone responses -> L, a, b.
_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_OPPONENTS = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def _to_oklab(colours: np.ndarray) -> np.ndarray:
    value = colours / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ _CONES.T) @ _OPPONENTS.T


def _from_oklab(places: np.ndarray) -> np.ndarray:
    linear = np.clip((places @ np.linalg.inv(_OPPONENTS).T) ** 3 @ np.linalg.inv(_CONES).T, 0.0, 1.0)
    value = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.rint(np.clip(value, 0.0, 1.0) * 255).astype(np.uint8)
