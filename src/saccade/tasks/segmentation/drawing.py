"""Drawing of masks: class colours, PNG files, overlays."""

import colorsys
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

GREY = (128, 128, 128)  # colour of ignored pixels


def palette(classes: int) -> list[list[int]]:
    """Return a fixed colour for each class, with distant hues of neighbours."""
    found = []
    for place in range(classes):
        hue = (0.6 + place * 0.618034) % 1.0  # steps of the golden ratio
        light = (0.55, 0.4, 0.7)[place // 12 % 3]
        found.append([round(255 * part) for part in colorsys.hls_to_rgb(hue, light, 0.75)])
    return found


def name_colours(names: Sequence[str]) -> dict[str, str]:
    """Return class colours, as "#rrggbb", by name."""
    return {name: "#{:02x}{:02x}{:02x}".format(*one) for name, one in zip(names, palette(len(names)), strict=True)}


def encode_places(mask: np.ndarray) -> bytes:
    """Encode classes, H, W, as a PNG for browsers: red is the class modulo 256, green the rest."""
    colours = np.stack([mask % 256, mask // 256, np.zeros_like(mask)], axis=-1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours).save(file, format="PNG", optimize=True)
    return file.getvalue()


def mask_image(mask: np.ndarray) -> Image.Image:
    """Return classes, H, W, as an image with these values; ignored pixels are 255 in a palette image."""
    highest = int(mask.max(initial=0))
    if highest >= 255:
        return Image.fromarray(np.where(mask < 0, 65535, mask).astype(np.uint16))
    image = Image.fromarray(np.where(mask < 0, 255, mask).astype(np.uint8))
    image.putpalette([part for colour in palette(255) for part in colour] + list(GREY))
    return image


def resize_mask(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize classes, H, W, by nearest neighbour."""
    image = Image.fromarray(mask.astype(np.int32))
    return np.asarray(image.resize(size[::-1], Image.Resampling.NEAREST)).astype(mask.dtype)


def overlay(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Overlay an image, H, W, 3 uint8, with the colours of its classes, H, W."""
    colours = np.array([*palette(max(int(mask.max(initial=0)) + 1, 1)), list(GREY)], dtype=np.float32)[mask]
    shown = np.where((mask < 0)[..., None], image, 0.5 * image + 0.5 * colours)
    return shown.round().clip(0, 255).astype(np.uint8)
