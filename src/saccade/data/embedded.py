"""The set that comes with the package: a class-balanced part of Fashion-MNIST (MIT licence)."""

from importlib import resources
from pathlib import Path

import numpy as np

from .reader import ReadOptions, register_reader
from .source import ArraySource
from .split import Splits


@register_reader("embedded")
class EmbeddedReader:
    """The set that comes with the package."""

    rank = 10

    def matches(self, spec: str, path: Path) -> bool:  # noqa: ARG002
        """Whether it is one."""
        return spec in ("", "embedded")

    def open(self, spec: str, path: Path, options: ReadOptions) -> Splits:  # noqa: ARG002
        """Open it."""
        return open_embedded()


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
