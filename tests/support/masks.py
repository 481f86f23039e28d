"""Small sets of images and masks."""

from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = np.array([[40, 60, 200], [230, 60, 30], [20, 180, 40]], dtype=np.uint8)


def make_pair(number: int, size: tuple[int, int] = (40, 32)) -> tuple[np.ndarray, np.ndarray]:
    """Return an image, H, W, 3, and its classes, H, W: a square on a ground, a band above."""
    draws = np.random.default_rng(number)
    width, height = size
    mask = np.zeros((height, width), np.uint8)
    left, top = draws.integers(2, width - 18), draws.integers(8, height - 16)
    mask[top : top + 14, left : left + 16] = 1
    mask[:6] = 2
    return COLOURS[mask] + draws.integers(0, 20, (height, width, 3)).astype(np.uint8), mask


def make_masks(
    root: Path, *, train: int = 6, val: int = 2, values: tuple[int, ...] = (0, 1, 2), size: tuple[int, int] = (40, 32)
) -> Path:
    """Write images/{train,val} and masks/{train,val}; `values` stand for the three classes."""
    for part, count in (("train", train), ("val", val)):
        for kind in ("images", "masks"):
            (root / kind / part).mkdir(parents=True)
        for number in range(count):
            image, mask = make_pair(number if part == "train" else 100 + number, size)
            Image.fromarray(image).save(root / "images" / part / f"{number}.png")
            save_mask(root / "masks" / part / f"{number}.png", np.array(values, np.uint8)[mask])
    return root


def save_mask(path: Path, mask: np.ndarray) -> None:
    """Write a mask as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(mask).save(path)
