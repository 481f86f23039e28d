"""Make the embedded part of Fashion-MNIST from the files of the Debian package dataset-fashion-mnist.

python benchmarks/accuracy/make_embedded.py [FOLDER] [--out FILE]
"""

import argparse
from pathlib import Path

import numpy as np

from saccade.data.arrays import FASHION, read_idx

PER_CLASS = {"train": 400, "test": 100}
OUT = Path(__file__).parents[2] / "src" / "saccade" / "data" / "embedded" / "fashion_mnist.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    arrays: dict[str, np.ndarray] = {"classes": np.array(FASHION)}
    for split, stem in (("train", "train"), ("test", "t10k")):
        images = read_idx(args.folder / f"{stem}-images-idx3-ubyte.gz")
        labels = read_idx(args.folder / f"{stem}-labels-idx1-ubyte.gz")
        first = [np.flatnonzero(labels == label)[: PER_CLASS[split]] for label in range(len(FASHION))]
        keep = np.sort(np.concatenate(first))
        arrays |= {f"x_{split}": images[keep], f"y_{split}": labels[keep], f"{split}_index": keep.astype(np.uint16)}
    np.savez_compressed(args.out, **arrays)
    print(f"{args.out}: {args.out.stat().st_size / 2**20:.2f} MiB, {', '.join(arrays)}")


if __name__ == "__main__":
    main()
