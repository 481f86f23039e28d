"""Lists of small images with several labels or numbers, both to be seen in the image."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image

LABELS = ("red", "green", "blue")
COLUMNS = {"multilabel": ("labels",), "regress": ("level", "red")}


def write_images(root: Path, *, train: int = 60, val: int = 24, side: int = 16) -> list[dict[str, str]]:
    """Write images whose channels are bright where they have a label; return what a list says of them."""
    rows = []
    for number in range(train + val):
        draws = np.random.default_rng(number)
        has = draws.random(3) < (0.5, 0.3, 0.6)
        level = draws.uniform(0, 1)
        pixels = draws.integers(0, 80, (side, side, 3)) + 140 * has
        pixels[: side // 4] = 255 * level  # a bar whose brightness is a number
        file = root / "images" / f"{number:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(file)
        rows.append(
            {
                "path": f"images/{number:03d}.png",
                "labels": "|".join(name for name, there in zip(LABELS, has, strict=True) if there),
                **{name: str(int(there)) for name, there in zip(LABELS, has, strict=True)},
                "level": f"{10 + 30 * level:.3f}",
                "split": "train" if number < train else "val",
            }
        )
    return rows


def write_task_lists(root: Path) -> dict[str, Path]:
    """Write a list of the same few images for each task that reads more than classes, by the task's name."""
    rows = write_images(root, train=24, val=10)
    return {task: write_list(root / f"{task}.csv", rows, columns) for task, columns in COLUMNS.items()}


def write_list(path: Path, rows: list[dict[str, str]], columns: tuple[str, ...]) -> Path:
    """Write some columns of a list as CSV."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, ["path", *columns, "split"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def labels_list(root: Path, **counts: int) -> Path:
    """Write a list with a column `labels`."""
    return write_list(root / "labels.csv", write_images(root, **counts), ("labels",))


def numbers_list(root: Path, **counts: int) -> Path:
    """Write a list with a column of numbers."""
    return write_list(root / "numbers.csv", write_images(root, **counts), ("level",))
