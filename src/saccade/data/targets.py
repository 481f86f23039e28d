"""Targets of a dataset: one row a sample, in the task's format."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from .image import BadSample
from .split import abbreviate

MOST_CLASSES = 1_000_000  # labels above it are refused: naming every class below would exhaust memory


@dataclass(frozen=True)
class Counts:
    """Numbers of training samples, where known."""

    outputs: Tensor | None = None  # samples for each output
    samples: int | None = None  # all samples


@dataclass(frozen=True)
class Targets:
    """Targets of samples; tasks derive their own.

    Args:
        rows: N, ...: class indices, 0 or 1 for each label, numbers.
        outputs: names of the outputs: classes, labels or columns.
        notes: remarks on how targets were read.

    Attributes:
        task: name of the task.
        noun: the word for the outputs, such as "class".
        counted: unit of `balance`.
        in_rows: whether rows are complete targets, so that all of them can be kept on the device.
        repaired: kinds of problems that `write_part` removes, so that a clean copy keeps the sample.
    """

    task: ClassVar[str] = ""
    noun: ClassVar[str] = "outputs"
    counted: ClassVar[str] = "images"
    in_rows: ClassVar[bool] = True
    repaired: ClassVar[tuple[str, ...]] = ()

    rows: np.ndarray
    outputs: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def require(self, where: str) -> None:
        """Refuse targets that cannot be learned; `where` is the dataset's name in errors."""

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> Any:
        """Return a sample's target: its row, or a mapping with `mask` and `boxes`, which are framed with the image."""
        return self.rows[index]

    def describe(self, index: int) -> str:
        """Return a sample's target as text for pages and messages."""
        values = np.atleast_1d(self.rows[index])
        return ", ".join(f"{name} {value:g}" for name, value in zip(self.outputs, values, strict=False))

    def subset(self, indices: Sequence[int] | np.ndarray) -> Self:
        """Return the targets of some samples, in the given order."""
        return replace(self, rows=self.rows[np.asarray(indices, dtype=np.int64)])

    def thinnest(self) -> float | None:
        """Return the pixels across the thinnest class or a side of the smallest objects; None if there is no such."""
        return None

    def strata(self) -> np.ndarray:
        """Return the stratum of each sample, N int64; held-out and limited subsets keep their proportions."""
        return np.zeros(len(self), dtype=np.int64)

    def counts(self) -> np.ndarray:
        """Return how many samples speak of each output."""
        return np.full(len(self.outputs), len(self))

    def balance(self) -> np.ndarray:
        """Return the amount of data for each output, in the unit `counted`; this may read the whole dataset."""
        return self.counts()

    def problems(self, index: int, size: tuple[int, int]) -> Iterator[BadSample]:  # noqa: ARG002
        """Yield problems of a target stored in a file, for an image of the given height and width."""
        return iter(())

    def write_part(
        self, folder: Path, part: str, samples: Sequence[tuple[int, str, tuple[int, int]]]
    ) -> Iterator[tuple[str, str]]:
        """Write the targets of a clean copy; yield name and reason of omitted ones.

        Args:
            part: "train" or "val".
            samples: index, name in the copy, and height and width of each kept sample.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be written to {folder} as {part}")

    def alone(self) -> list[str]:
        """Return the outputs that have a single sample."""
        return [name for name, count in zip(self.outputs, self.counts(), strict=True) if count == 1]

    def aligned(self, outputs: tuple[str, ...]) -> Self:
        """Return validation targets mapped to the outputs of the training samples."""
        if outputs != self.outputs:
            raise ValueError(
                f"the validation samples have {abbreviate(self.outputs)} and the training samples have "
                f"{abbreviate(outputs)}; use the same for both"
            )
        return self

    def update(self, digest: "hashlib._Hash") -> None:
        """Update a digest with the targets."""
        digest.update("\0".join(self.outputs).encode())
        digest.update(f"{self.rows.dtype.str} {self.rows.shape}".encode())
        digest.update(np.ascontiguousarray(self.rows).data)


@dataclass(frozen=True)
class ClassTargets(Targets):
    """One class a sample: rows are indices, N int64, outputs the names of the classes."""

    task = "classify"
    noun = "classes"

    def require(self, where: str) -> None:
        """Refuse fewer than two classes."""
        require_classes(self.outputs, where)

    @classmethod
    def of(cls, labels: np.ndarray, classes: Sequence[str], *, count: int, where: str) -> "ClassTargets":
        """Return labels as targets, or raise an error; `where` is the dataset's name in it."""
        labels = np.asarray(labels)
        if labels.size == 0:
            labels = labels.astype(np.int64)
        if labels.shape != (count,) or labels.dtype.kind not in "iu":
            raise ValueError(
                f"{where}: got labels of type {labels.dtype} and shape {labels.shape} for {count} images; expected "
                "one whole number per image"
            )
        if count and (labels.min() < 0 or labels.max() >= len(classes)):
            raise ValueError(
                f"{where}: got labels from {labels.min()} to {labels.max()} for {len(classes)} classes; expected "
                f"labels from 0 to {len(classes) - 1}"
            )
        return cls(labels.astype(np.int64), tuple(classes))

    def read(self, index: int) -> int:
        """Return a sample's class."""
        return int(self.rows[index])

    def describe(self, index: int) -> str:
        """Return the name of a sample's class."""
        return self.outputs[self.rows[index]]

    def strata(self) -> np.ndarray:
        """Return the classes."""
        return self.rows

    def counts(self) -> np.ndarray:
        """Return how many samples each class has."""
        return np.bincount(self.rows, minlength=len(self.outputs))

    def aligned(self, outputs: tuple[str, ...]) -> Self:
        """Return targets with the indices of another list of classes, which includes all of its own."""
        lookup = renumber(self.outputs, outputs, used=np.flatnonzero(self.counts()))
        return replace(self, rows=lookup[self.rows], outputs=outputs)

    def update(self, digest: "hashlib._Hash") -> None:
        """Update a digest with classes and labels."""
        digest.update("\0".join(self.outputs).encode())
        digest.update(np.ascontiguousarray(self.rows, dtype="<i8").data)


def require_classes(classes: Sequence[str], where: str) -> None:
    """Refuse fewer than two classes."""
    if len(classes) < 2:
        raise ValueError(
            f"{where} has {len(classes)} class ({abbreviate(classes)}); a classifier needs two or more. In a "
            "directory of images, each class is a folder of its own"
        )


def numbered_classes(highest: int, *, where: str) -> tuple[str, ...]:
    """Return names for numbered classes."""
    if highest >= MOST_CLASSES:
        raise ValueError(
            f"{where} has the label {highest}; classes are numbered from 0, with at most {MOST_CLASSES}. Number them "
            "without gaps, or use names"
        )
    return tuple(map(str, range(highest + 1)))


def renumber(own: Sequence[str], outputs: Sequence[str], *, used: np.ndarray) -> np.ndarray:
    """Return the indices of classes in another list; -1 for unused classes that it lacks."""
    new = {name: place for place, name in enumerate(outputs)}
    unknown = [own[place] for place in used if own[place] not in new]
    if unknown:
        raise ValueError(
            f"the validation samples have classes that the training samples lack: {abbreviate(unknown)}; the "
            f"training classes are {abbreviate(list(outputs))}. Rename them, or remove them"
        )
    return np.array([new.get(name, -1) for name in own], dtype=np.int64)
