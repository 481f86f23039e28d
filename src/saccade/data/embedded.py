"""The set that comes with the package: a class-balanced part of Fashion-MNIST (MIT licence)."""

from importlib import resources

import numpy as np

from .source import ArraySource
from .split import Splits


def open_embedded() -> Splits:
    """Open 4,000 training and 1,000 test pictures, 28 x 28 and grey, of ten kinds of clothing."""
    file = resources.files("saccade.data").joinpath("embedded", "fashion_mnist.npz")
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
        classes = tuple(str(name) for name in archive["classes"])
        train, test = (
            ArraySource(
                archive[f"x_{split}"],
                archive[f"y_{split}"],
                classes=classes,
                prefix=split,
                ids=archive[f"{split}_index"],
            )
            for split in ("train", "test")
        )
    note = f"this is the embedded part of Fashion-MNIST: {len(train)} training and {len(test)} test pictures"
    return Splits(train, test, (note,))
