"""Maps drawn over images: heat, labels and shares, in colours that keep their order and can be told apart."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

LABELS = 64  # colours that can still be told apart; further labels begin again
GAP = 4  # pixels between the images of a montage
CAPTION = 16  # pixels above each of them, where there are captions
SMALLEST = 224  # longer side of an image that is drawn on


def heat_overlay(pixels: np.ndarray, heat: np.ndarray, *, alpha: float = 0.6, smooth: bool = True) -> np.ndarray:
    """Draw a heat map over an image's greys.

    Args:
        pixels: H, W, 3 uint8.
        heat: h, w from 0 (nothing) to 1; any size, it is brought to the image's.
        alpha: how much of the heat's colour covers the image, 0 to 1.
        smooth: blend between the cells of the map; False shows the cells.
    """
    heat = upsample(np.clip(heat, 0.0, 1.0), *pixels.shape[:2], smooth=smooth)
    return overlay(to_grey(pixels), heat_colours(heat), alpha=alpha)


def label_overlay(pixels: np.ndarray, labels: np.ndarray, count: int, *, alpha: float = 0.6) -> np.ndarray:
    """Draw a map of labels over an image's greys, each in a colour of its own.

    Args:
        pixels: H, W, 3 uint8.
        labels: h, w of integers from 0 to count - 1.
        count: how many labels there are; a label has the same colour whichever of them occur.
        alpha: how much of the colour covers the image, 0 to 1.
    """
    labels = upsample(labels, *pixels.shape[:2], smooth=False)
    return overlay(to_grey(pixels), label_colours(count)[labels], alpha=alpha)


def overlay(pixels: np.ndarray, colours: np.ndarray, *, alpha: float) -> np.ndarray:
    """Mix an image with colours of its size, both H, W, 3 uint8; alpha 1 leaves the colours alone."""
    mixed = pixels.astype(np.float64) * (1 - alpha) + colours.astype(np.float64) * alpha
    return np.rint(mixed).astype(np.uint8)


def to_grey(pixels: np.ndarray) -> np.ndarray:
    """Take the colours out of an image H, W, 3, so that those drawn over it are not mistaken."""
    return np.asarray(Image.fromarray(pixels).convert("L").convert("RGB"))


def scale_heat(values: np.ndarray) -> np.ndarray:
    """Bring values to 0..1: what is below 0 becomes 0, the greatest becomes 1; nothing but zeros stays zeros."""
    values = np.nan_to_num(np.maximum(values, 0.0))
    top = values.max(initial=0.0)
    return values / top if top > 0 else values


def heat_colours(heat: np.ndarray) -> np.ndarray:
    """Return colours, ..., 3 uint8, of values 0..1: from dark blue over magenta to light yellow, ever lighter."""
    index = np.rint(np.clip(np.nan_to_num(heat), 0.0, 1.0) * 255).astype(np.intp)
    return _heat_table()[index]


def share_colours(shares: np.ndarray) -> np.ndarray:
    """Mix red, green and blue, ..., 3 uint8, by three shares that sum to 1 along the last axis."""
    return np.rint(np.clip(shares, 0.0, 1.0) * 255).astype(np.uint8)


@cache
def label_colours(count: int) -> np.ndarray:
    """Return colours for labels, count, 3 uint8: each as far as can be from all before it."""
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
    """Bring a map h, w, or h, w, channels to another size.

    Args:
        values: numbers of any kind; smooth needs a map h, w.
        smooth: bilinear; False repeats cells and keeps the kind of the numbers.
    """
    if smooth:
        image = Image.fromarray(np.ascontiguousarray(values, dtype=np.float32))
        return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    rows = (np.arange(height) + 0.5) * values.shape[0] / height
    columns = (np.arange(width) + 0.5) * values.shape[1] / width
    return values[rows.astype(np.intp)[:, None], columns.astype(np.intp)[None]]


def enlarge(pixels: np.ndarray) -> np.ndarray:
    """Repeat the pixels of a small image, H, W, 3 uint8, so that a map can be seen on it."""
    factor = -(-SMALLEST // max(pixels.shape[:2]))
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1) if factor > 1 else pixels


def montage(
    images: Sequence[np.ndarray], columns: int | None = None, *, captions: Sequence[str] | None = None
) -> np.ndarray:
    """Put images of any sizes side by side, on white.

    Args:
        images: each H, W, 3 uint8.
        columns: how many in a row; all by default.
        captions: a short text above each.
    """
    if not images or (captions is not None and len(captions) != len(images)):
        raise ValueError(f"{len(images)} images and {len(captions or ())} captions; give one or more, one caption each")
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
    """Cut a text to a width in pixels."""
    while text and font.getlength(text) > width:
        text = text[:-1]
    return text


@cache
def _heat_table() -> np.ndarray:
    """256 colours whose lightness in OKLab grows evenly."""
    light = np.linspace(0.22, 0.95, 256)
    hue = np.radians(np.linspace(275, 455, 256))
    chroma = 0.04 + 0.16 * np.sin(np.pi * np.linspace(0.1, 0.9, 256))
    table = _from_oklab(np.stack([light, chroma * np.cos(hue), chroma * np.sin(hue)], axis=-1))
    table.setflags(write=False)
    return table


# OKLab, a space in which equal steps look equal: linear light -> cone responses, their cube roots -> L, a, b.
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
