"""Images embedded in pages."""

import base64
import io

import numpy as np
from PIL import Image

from .markup import Html, tag

LARGEST = 128
MIN_SIDE = 96


def encode_image(pixels: np.ndarray, *, alt: str, largest: int = LARGEST, smallest: int = MIN_SIDE) -> Html:
    """Return an image element with an embedded image, H, W, 3 or H, W, 1 or H, W uint8."""
    image = _fit(_open(pixels), largest=largest, smallest=smallest)
    return tag("img", src=_uri(image), alt=alt, width=image.width, height=image.height)


def png_uri(pixels: np.ndarray, *, largest: int = LARGEST, smallest: int = MIN_SIDE) -> str:
    """Return an image as a data URI.

    Args:
        pixels: H, W, 3 or H, W, 1 or H, W uint8.
        largest: largest longer side.
        smallest: smaller images are enlarged by an integer factor.
    """
    return _uri(_fit(_open(pixels), largest=largest, smallest=smallest))


def _open(pixels: np.ndarray) -> Image.Image:
    pixels = np.asarray(pixels)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    colour = pixels.ndim == 3 and pixels.shape[2] == 3
    if pixels.dtype != np.uint8 or not (colour or pixels.ndim == 2) or not pixels.size:
        raise ValueError(
            f"an image of type {pixels.dtype} and shape {pixels.shape} was given; it must be uint8 with shape (H, W, "
            "3), (H, W, 1) or (H, W)"
        )
    return Image.fromarray(np.ascontiguousarray(pixels))


def _fit(image: Image.Image, *, largest: int, smallest: int) -> Image.Image:
    longer = max(image.size)
    if longer > largest:
        width, height = (max(round(side * largest / longer), 1) for side in image.size)
        return image.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
    factor = min(-(-smallest // longer), largest // longer)
    if factor > 1:
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    return image


def _uri(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
