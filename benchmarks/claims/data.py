"""Write the sets of the claims from archives of CIFAR: in full, and the first tenth of each class.

    python benchmarks/claims/data.py FOLDER cifar100_a_train20k_test10k.npz [cifar100_b_train_rest30k.npz]

An archive holds mosaics of lossless WebP, 32 images of 32 pixels a row (`train_webp_000`, ...), with `train_label` and
`test_label`. The tenth is the first 50 images of each class in the order of the archives, so the first one is enough
for it; the test set is the same 10,000 images for both.
"""

import argparse
import io
from pathlib import Path

import numpy as np
from PIL import Image

SIDE, COLUMNS, TENTH = 32, 32, 50


def read_images(archive: np.lib.npyio.NpzFile, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a split's images and labels."""
    parts = []
    for name in sorted(key for key in archive.files if key.startswith(f"{split}_webp_")):
        mosaic = np.asarray(Image.open(io.BytesIO(archive[name].tobytes())).convert("RGB"))
        rows = mosaic.reshape(mosaic.shape[0] // SIDE, SIDE, COLUMNS, SIDE, 3)
        parts.append(rows.swapaxes(1, 2).reshape(-1, SIDE, SIDE, 3))
    labels = archive[f"{split}_label"].astype(np.int64)
    return np.concatenate(parts)[: len(labels)], labels


def first_of_each(labels: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the first `count` samples of each class, in order."""
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:count] for label in np.unique(labels)]))


def write(path: Path, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]) -> None:
    """Write a set as `saccade` reads it, whole or not at all."""
    part = path.with_name(f".{path.name}")
    with open(part, "wb") as file:
        np.savez(file, x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1])
    part.replace(path)
    print(f"{path}: {len(train[1]):,} training and {len(test[1]):,} test images", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write cifar100.npz and cifar100_tenth.npz")
    parser.add_argument("archives", type=Path, nargs="+")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    opened = [np.load(path) for path in args.archives]
    test = read_images(opened[0], "test")
    trains = [read_images(archive, "train") for archive in opened]
    if len(trains) > 1:
        images, labels = zip(*trains, strict=True)
        write(args.folder / "cifar100.npz", (np.concatenate(images), np.concatenate(labels)), test)
    images, labels = trains[0]
    kept = first_of_each(labels, TENTH)
    write(args.folder / "cifar100_tenth.npz", (images[kept], labels[kept]), test)


if __name__ == "__main__":
    main()
