"""Make small sets of coloured shapes with masks or boxes, of any size and number of classes."""

import colorsys
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

KINDS = ("disc", "square", "triangle")
THIN = ("ring", "cross", "stroke")  # lines of three pixels, at any size
GROUND = 0  # class of pixels outside of all shapes
ROOM = 200  # tries to place a shape clear of the others


def make_masks(
    root: Path,
    *,
    train: int = 80,
    val: int = 40,
    size: tuple[int, int] = (90, 110),
    classes: int = 3,
    forms: Sequence[str] = KINDS,
) -> Path:
    """Write images/{train,val} and masks/{train,val}; `size` is the width and height of the images."""
    for name, image, mask, _ in _samples(train, val, size, classes, forms):
        _save(root / "images" / name, image)
        _save(root / "masks" / name, mask)
    _write(root / "classes.txt", "\n".join(("ground", *names_of(classes, forms))))
    return root


def make_boxes(
    root: Path,
    *,
    train: int = 80,
    val: int = 40,
    size: tuple[int, int] = (90, 110),
    classes: int = 3,
    forms: Sequence[str] = KINDS,
) -> Path:
    """Write images/{train,val} with COCO's annotations train.json and val.json."""
    lists: dict[str, dict[str, list[dict[str, object]]]] = {}
    for name, image, _, boxes in _samples(train, val, size, classes, forms):
        _save(root / "images" / name, image)
        part = lists.setdefault(name.split("/")[0], {"images": [], "annotations": []})
        number = len(part["images"]) + 1
        part["images"].append({"id": number, "file_name": f"images/{name}", "width": size[0], "height": size[1]})
        for label, left, top, right, bottom in boxes:
            box = [left, top, right - left, bottom - top]
            one = {"id": len(part["annotations"]) + 1, "image_id": number, "category_id": label, "iscrowd": 0}
            part["annotations"].append(one | {"bbox": box, "area": box[2] * box[3]})
    categories = [{"id": number, "name": name} for number, name in enumerate(names_of(classes, forms), 1)]
    for part, found in lists.items():
        _write(root / f"{part}.json", json.dumps({**found, "categories": categories}))
    return root


def names_of(classes: int, forms: Sequence[str] = KINDS) -> list[str]:
    """Return the names of the shapes, of which each has its form and hue."""
    return [f"{forms[number % len(forms)]} {number + 1}" for number in range(classes)]


def make_sample(
    draws: np.random.Generator, size: tuple[int, int], classes: int, forms: Sequence[str] = KINDS
) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int, int, int, int]]]:
    """Return an image, H, W, 3, its mask, H, W, and of each shape its class, left, top, right and bottom."""
    width, height = size
    mask = np.full((height, width), GROUND, np.uint8)
    down, across = np.mgrid[:height, :width]
    boxes = []
    wanted, low = int(draws.integers(2, 5)), min(size) // 10
    for _ in range(ROOM):
        reach, label = int(draws.integers(low, 2 * low + 1)), int(draws.integers(1, classes + 1))
        x, y = (int(draws.integers(reach + 1, side - reach - 1)) for side in size)
        window = mask[y - reach - 1 : y + reach + 2, x - reach - 1 : x + reach + 2]
        if len(boxes) == wanted or window.any():
            continue
        dx, dy = abs(across - x), down - y
        inside = {
            "disc": dx**2 + dy**2 <= reach**2,
            "square": (dx <= reach) & (abs(dy) <= reach),
            "triangle": (abs(dy) <= reach) & (2 * dx <= dy + reach),
            "ring": abs(np.hypot(dx, dy) - reach + 1) <= 1,
            "cross": np.minimum(dx, abs(dy)) + reach * (np.maximum(dx, abs(dy)) > reach) <= 1,
            "stroke": (abs(dy) <= reach) & (abs(across - x - dy) <= 1),
        }[forms[(label - 1) % len(forms)]]
        mask[inside] = label
        rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
        boxes.append((label, int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1))
    hues = [colorsys.hsv_to_rgb(number / classes, 0.75, 0.75) for number in range(classes)]
    colours = np.array([(0.45, 0.45, 0.45), *hues]) * 255
    image = colours[mask] * draws.uniform(0.7, 1.2) + draws.normal(0, 18, (height, width, 3))
    return image.clip(0, 255).astype(np.uint8), mask, boxes


def _samples(
    train: int, val: int, size: tuple[int, int], classes: int, forms: Sequence[str]
) -> Iterator[tuple[str, np.ndarray, np.ndarray, list[tuple[int, int, int, int, int]]]]:
    for part, count in (("train", train), ("val", val)):
        for number in range(count):
            draws = np.random.default_rng([number, part == "val"])
            yield f"{part}/{number:04}.png", *make_sample(draws, size, classes, forms)


def _save(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
