"""Small sets of images with squares and discs in them, listed as COCO does."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLASSES = ("square", "disc")
COLOURS = np.array([[230, 60, 30], [40, 160, 240]], dtype=np.uint8)


def make_image(number: int, *, side: int = 64, objects: int = 2) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
    """Return an image, S, S, 3, and of each object its class and its pixels, S, S bool."""
    draws = np.random.default_rng(number)
    image = draws.integers(0, 40, (side, side, 3)).astype(np.uint8)
    found: list[tuple[int, np.ndarray]] = []
    down, across = np.mgrid[:side, :side]
    taken = np.zeros((side, side), dtype=bool)
    for _ in range(20 * objects):
        label, reach = int(draws.integers(2)), int(draws.integers(side // 8, side // 5))
        x, y = draws.integers(reach, side - reach, 2)
        square = (abs(down - y) < reach) & (abs(across - x) < reach)
        mask = square if label == 0 else (down - y) ** 2 + (across - x) ** 2 < reach**2
        if len(found) < objects and not (mask & taken).any():
            taken |= square
            image[mask] = COLOURS[label] - draws.integers(0, 20)
            found.append((label, mask))
    return image, found


def make_list(numbers: dict[str, int], *, masks: bool = True, side: int = 64, objects: int = 2) -> dict[str, Any]:
    """Return what COCO's list says of images by their names and seeds; masks are polygons of the squares, runs else."""
    images, annotations = [], []
    for place, (name, number) in enumerate(numbers.items(), 1):
        images.append({"id": place, "file_name": name, "width": side, "height": side})
        for label, mask in make_image(number, side=side, objects=objects)[1]:
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            left, top, right, bottom = (int(v) for v in (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
            one = {"id": len(annotations) + 1, "image_id": place, "category_id": label + 1, "iscrowd": 0}
            one |= {"bbox": [left, top, right - left, bottom - top], "area": int(mask.sum())}
            if masks and label == 0:
                one["segmentation"] = [[left, top, right, top, right, bottom, left, bottom]]
            elif masks:
                flat = mask.T.ravel()
                ends = np.flatnonzero(flat[1:] != flat[:-1]) + 1
                one["segmentation"] = {"size": [side, side], "counts": np.diff([0, *ends, len(flat)]).tolist()}
            annotations.append(one)
    categories = [{"id": place, "name": name} for place, name in enumerate(CLASSES, 1)]
    return {"images": images, "annotations": annotations, "categories": categories}


def make_objects(
    root: Path, *, train: int = 6, val: int = 2, masks: bool = True, side: int = 64, objects: int = 2
) -> Path:
    """Write images/{train,val} with train.json and val.json beside them."""
    for part, count, first in (("train", train, 0), ("val", val, 1000)):
        (root / "images" / part).mkdir(parents=True)
        numbers = {f"images/{part}/{number}.png": first + number for number in range(count)}
        for name, number in numbers.items():
            Image.fromarray(make_image(number, side=side, objects=objects)[0]).save(root / name)
        (root / f"{part}.json").write_text(json.dumps(make_list(numbers, masks=masks, side=side, objects=objects)))
    return root


def change(root: Path, how: Callable[[dict[str, Any]], Any], part: str = "train") -> Path:
    """Change a part's list."""
    file = root / f"{part}.json"
    whole = json.loads(file.read_text())
    how(whole)
    file.write_text(json.dumps(whole))
    return root
