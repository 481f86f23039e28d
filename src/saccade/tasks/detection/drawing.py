"""Drawing of objects: masks, boxes and names."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ...data.frame import strips
from .regions import to_mask
from .runs import pack_runs

THRESHOLD = 0.5  # probability from which a pixel belongs to an object
MIN_SIDE = 480  # smallest longer side of annotated images


def paste_masks(masks: Tensor, boxes: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Resize masks to their boxes in an image, K, H, W bool.

    Args:
        masks: probabilities inside the boxes, K, side, side.
        boxes: boxes in pixels, K, 4.
        size: height and width of the image.
    """
    height, width = (size, size) if isinstance(size, int) else size
    left, top, right, bottom = boxes.float().unbind(-1)
    across = (torch.arange(width, device=boxes.device) + 0.5)[None]
    down = (torch.arange(height, device=boxes.device) + 0.5)[None]
    x = (across - left[:, None]) / (right - left).clamp(min=1e-3)[:, None] * 2 - 1
    y = (down - top[:, None]) / (bottom - top).clamp(min=1e-3)[:, None] * 2 - 1
    found = torch.empty(len(masks), height, width, dtype=torch.bool, device=boxes.device)
    for part in strips(height, len(masks) * width):
        rows = y[:, part, None]
        grid = torch.stack([x[:, None].expand(-1, rows.shape[1], -1), rows.expand(-1, -1, width)], dim=-1)
        found[:, part] = F.grid_sample(masks[:, None].float(), grid, align_corners=False)[:, 0] >= THRESHOLD
    return found


def paste_part(mask: Tensor, box: Tensor, size: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """Resize a mask, side, side, to its box; return the part inside the image, h, w bool, and its row and column."""
    ends = box.tolist()
    left, top = (max(math.floor(side), 0) for side in ends[:2])
    right, bottom = min(math.ceil(ends[2]), size[1]), min(math.ceil(ends[3]), size[0])
    if right <= left or bottom <= top:
        return mask.new_zeros((0, 0), dtype=torch.bool), (0, 0)
    moved = box.double() - box.new_tensor([left, top, left, top])
    return paste_masks(mask[None], moved[None], (bottom - top, right - left))[0], (top, left)


def to_runs(cells: np.ndarray, box: np.ndarray, size: tuple[int, int]) -> str:
    """Return an object's mask in COCO's compressed RLE."""
    part, corner = paste_part(torch.from_numpy(np.ascontiguousarray(cells)), torch.from_numpy(box), size)
    return pack_runs(part.numpy(), corner=corner, size=size)


def draw_objects(
    pixels: np.ndarray,
    objects: Sequence[Mapping[str, Any]],
    colours: Mapping[str, str],
    size: tuple[int, int],
    *,
    side: int | None = None,
) -> np.ndarray:
    """Draw objects on an image, at a size at which names are legible.

    Args:
        pixels: H, W, 3 uint8, possibly a resized image.
        objects: objects with `class`, `box` and optionally `score` and `segmentation`; the first is drawn on top.
        colours: colours of classes, as "#rrggbb".
        size: height and width of the original image.
        side: longer side of the result; default: small images are enlarged.
    """
    image = Image.fromarray(pixels)
    scale = max(MIN_SIDE / max(image.size), 1.0) if side is None else side / max(image.size)
    shape = (max(round(image.width * scale), 1), max(round(image.height * scale), 1))
    image = image.resize(shape, Image.Resampling.BICUBIC, reducing_gap=3.0)
    for one in reversed(objects):
        if "segmentation" in one:
            with suppress(ValueError):  # annotations may have invalid regions
                mask = Image.fromarray(to_mask(one["segmentation"], size).astype(np.uint8) * 110).resize(image.size)
                image.paste(colours[one["class"]], mask=mask)
    pen = ImageDraw.Draw(image)
    line = max(round(max(image.size) / 200), 2)
    font = ImageFont.load_default(size=6 * line)
    for one in reversed(objects):
        across, down = image.width / size[1], image.height / size[0]
        left, top, right, bottom = (side * (down if axis % 2 else across) for axis, side in enumerate(one["box"]))
        pen.rectangle(
            (left, top, max(right, left + 1), max(bottom, top + 1)), outline=colours[one["class"]], width=line
        )
        text = " ".join(one["class"].split())[:24] + (f" {one['score']:.0%}" if "score" in one else "")
        high = 7 * line
        above = top - high if top >= high else top
        wide = pen.textlength(text, font=font) + 2 * line
        pen.rectangle((left, above, left + wide, above + high), fill=colours[one["class"]])
        pen.text((left + line, above), text, fill=_legible(colours[one["class"]]), font=font)
    return np.asarray(image)


def _legible(colour: str) -> str:
    """Return black or white, whichever is legible on a colour."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 128 else "white"
