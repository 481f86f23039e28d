"""What pictures come from: a source gives them by index, a stream one after another."""

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from .held_out import choose_held_out, held_out_notes, identity, some
from .picture import BadPicture, decode


class Pictures(ABC):
    """What sources and streams have in common.

    Attributes:
        classes: names of the classes.
        at_least: lets large JPEGs be decoded smaller; see `decode`.
    """

    classes: tuple[str, ...]
    at_least: int | None = None

    def decoded(self, *, at_least: int) -> Self:
        """Return the same pictures, large JPEGs decoded smaller but with at least so many pixels on the short side."""
        other = copy.copy(self)
        other.at_least = at_least
        return other


class Source(Pictures):
    """Pictures with labels, by index.

    It holds no open files, so that loaders' processes can have copies.

    Attributes:
        labels: class index of every picture, N int64.
        lost: what was found to be missing when the set was listed.
    """

    labels: np.ndarray
    lost: tuple[BadPicture, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def name(self, index: int) -> str:
        """Return what the log calls a picture; the same wherever the set lies."""

    @abstractmethod
    def read(self, index: int) -> np.ndarray:
        """Return a picture, H, W, 3 uint8 (H, W, 1 from grey arrays), or raise BadPicture."""

    @abstractmethod
    def subset(self, indices: Sequence[int] | np.ndarray) -> "Source":
        """Return the source of some of the pictures, in the order given."""

    def hold_out(self, *, share: float, seed: int) -> tuple["Source", "Source", tuple[str, ...]]:
        """Split off validation pictures by name and seed; return both parts and remarks."""
        keys = np.array([identity(self.name(index), seed) for index in range(len(self))], dtype=np.int64)
        held = choose_held_out(keys, self.labels, share=share)
        return (
            self.subset(np.flatnonzero(~held)),
            self.subset(np.flatnonzero(held)),
            held_out_notes(held, self.labels, self.classes, share=share, seed=seed),
        )

    def ready(self) -> None:
        """Do once what makes reading fast, before there are processes that read."""

    def raw(self, index: int) -> Path | bytes | None:  # noqa: ARG002
        """Return the encoded picture, a file or its bytes; None where there is none."""
        return None

    def array(self) -> np.ndarray | None:
        """Return all pictures, N, H, W, C uint8, if they are in memory at one size, else None."""
        return None

    def counts(self) -> np.ndarray:
        """Return how many pictures each class has."""
        return np.bincount(self.labels, minlength=len(self.classes))

    def fingerprint(self) -> str:
        """Return the SHA-256 of names, labels, classes and, in memory, pixels; where the set lies does not matter."""
        digest = hashlib.sha256()
        digest.update("\0".join(self.classes).encode())
        digest.update(np.ascontiguousarray(self.labels, dtype="<i8").data)
        for index in range(len(self)):
            digest.update(self.name(index).encode() + b"\0")
        pixels = self.array()
        if pixels is not None:
            digest.update(repr(pixels.shape).encode())
            for picture in pixels:
                digest.update(np.ascontiguousarray(picture).data)
        return digest.hexdigest()

    def renamed(self, classes: tuple[str, ...]) -> Self:
        """Return the source with its labels counted in another list of classes, which has all of its own."""
        new = {name: index for index, name in enumerate(classes)}
        used = [name for name, count in zip(self.classes, self.counts(), strict=True) if count]
        unknown = [name for name in used if name not in new]
        if unknown:
            raise ValueError(
                f"the validation pictures have classes that the training pictures lack: {some(unknown)}; the training "
                f"classes are {some(list(classes))}. Rename them, or take them out"
            )
        lookup = np.array([new.get(name, -1) for name in self.classes], dtype=np.int64)
        other = copy.copy(self)
        other.classes, other.labels = classes, lookup[self.labels]
        return other


class ArraySource(Source):
    """Pictures in memory.

    Args:
        images: N, H, W, C uint8 with one or three channels, or N, H, W.
        labels: class indices, N.
        classes: names of the classes.
        prefix: the first part of the pictures' names; the second is their number.
        ids: numbers of the pictures, N; their positions by default.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        *,
        classes: Sequence[str],
        prefix: str = "picture",
        ids: np.ndarray | None = None,
    ) -> None:
        images = images[..., None] if images.ndim == 3 else images
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
            raise ValueError(
                f"{prefix}: images of type {images.dtype} and shape {images.shape} were given; they are uint8 of shape "
                "(N, H, W, 3), (N, H, W, 1) or (N, H, W)"
            )
        self.labels = check_labels(labels, count=len(images), classes=classes, where=prefix)
        self.images = images
        self.classes = tuple(classes)
        self.prefix = prefix
        self.ids = np.arange(len(images)) if ids is None else np.asarray(ids, dtype=np.int64)

    def name(self, index: int) -> str:
        """Return prefix and number of a picture."""
        return f"{self.prefix}[{self.ids[index]}]"

    def read(self, index: int) -> np.ndarray:
        """Return a picture, H, W, C; it is the array's own memory."""
        return self.images[index]

    def array(self) -> np.ndarray:
        """Return all pictures, N, H, W, C."""
        return self.images

    def subset(self, indices: Sequence[int] | np.ndarray) -> "ArraySource":
        """Return the source of some of the pictures."""
        keep = np.asarray(indices, dtype=np.int64)
        return ArraySource(
            self.images[keep], self.labels[keep], classes=self.classes, prefix=self.prefix, ids=self.ids[keep]
        )


class FileSource(Source):
    """Pictures in files.

    Args:
        root: the folder that names are relative to.
        names: paths below the root, with forward slashes.
        labels: class indices, N.
        classes: names of the classes.
    """

    def __init__(
        self,
        root: Path,
        names: "Sequence[str] | Names",
        labels: np.ndarray,
        *,
        classes: Sequence[str],
    ) -> None:
        self.root = root
        self.names = names if isinstance(names, Names) else Names(names)
        self.labels = check_labels(labels, count=len(self.names), classes=classes, where=str(root))
        self.classes = tuple(classes)

    def name(self, index: int) -> str:
        """Return the path below the root."""
        # A name that is no valid Unicode can be opened but not printed.
        return self.names[index].encode(errors="backslashreplace").decode()

    def raw(self, index: int) -> Path:
        """Return the path of a picture's file."""
        return self.root / self.names[index]

    def read(self, index: int) -> np.ndarray:
        """Decode a picture's file."""
        return decode(self.raw(index), name=self.name(index), at_least=self.at_least)

    def subset(self, indices: Sequence[int] | np.ndarray) -> "FileSource":
        """Return the source of some of the pictures."""
        keep = np.asarray(indices, dtype=np.int64)
        part = copy.copy(self)
        part.names, part.labels = Names([self.names[int(index)] for index in keep]), self.labels[keep]
        return part


class Names:
    """Many strings in one block of memory: a forked process does not copy it by counting references."""

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [name.encode(errors="surrogateescape") for name in names]
        self._text = b"".join(encoded)
        self._ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        index += len(self) if index < 0 else 0
        ends = self._ends[index : index + 2].tolist() if index >= 0 else []
        if len(ends) < 2:
            raise IndexError("there is no name of that number")
        return self._text[ends[0] : ends[1]].decode(errors="surrogateescape")


class Sample(NamedTuple):
    """A picture of a stream."""

    picture: np.ndarray  # H, W, 3 uint8
    label: int
    name: str
    key: int  # int64, the same for the same picture in every epoch


class Stream(Pictures):
    """Pictures with labels one after another, for sets too large to hold or to list.

    Attributes:
        length: how many pictures an epoch has over all readers; None if that is not known.
        lost: what was found to be missing, if the set was listed.
    """

    length: int | None = None
    lost: tuple[BadPicture, ...] = ()

    @abstractmethod
    def samples(
        self, *, seed: int, epoch: int, rank: int, world: int, worker: int, workers: int, skip: int = 0
    ) -> Iterator[Sample | BadPicture]:
        """Yield one reader's part of an epoch, in an order that is a function of the arguments alone.

        Args:
            seed: of the run.
            epoch: counted from 0.
            rank: of this process.
            world: how many processes there are.
            worker: of this process, counted from 0.
            workers: how many workers each process has, at least 1.
            skip: how many to pass over, bad ones included, without decoding them.
        """

    def indexed(self) -> Source:
        """Return the same pictures by index."""
        raise ValueError("this stream cannot be read by index; give validation pictures that can, such as files")

    def hold_out(self, *, share: float, seed: int) -> tuple["Stream", Source, tuple[str, ...]]:  # noqa: ARG002
        """Return the stream without some pictures, those pictures by index, and remarks."""
        raise ValueError("no pictures can be held out of this stream; give validation pictures of their own")


def check_labels(labels: np.ndarray, *, count: int, classes: Sequence[str], where: str) -> np.ndarray:
    """Return labels as int64, or say what is wrong with them."""
    labels = np.asarray(labels)
    if labels.size == 0:
        labels = labels.astype(np.int64)
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{where}: labels of type {labels.dtype} and shape {labels.shape} were given for {count} pictures; "
            "they are one whole number a picture"
        )
    if count and (labels.min() < 0 or labels.max() >= len(classes)):
        raise ValueError(
            f"{where}: labels from {labels.min()} to {labels.max()} were given for {len(classes)} classes; "
            f"they count from 0 to {len(classes) - 1}"
        )
    return labels.astype(np.int64)
