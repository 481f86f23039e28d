"""Sources have samples by index, streams yield them in sequence."""

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from .image import BadSample, decode
from .split import choose_held_out, held_out_notes, identity
from .targets import ClassTargets, Targets


class Sample(NamedTuple):
    """One sample: inputs, target and name."""

    inputs: Mapping[str, Any]  # by name: image, H, W, C uint8; text
    target: Any  # in the task's format; None if unknown
    name: str  # for messages; does not depend on the dataset's location
    key: int = 0  # int64; in a stream, the same for a sample in every epoch


class Samples(ABC):
    """Base of sources and streams.

    Attributes:
        outputs: names of the outputs: classes, labels or columns of numbers.
        at_least: allows decoding large JPEGs at reduced size; see `decode`.
    """

    at_least: int | None = None

    @property
    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """Names of what a model answers with: classes, labels, columns of numbers."""

    @property
    @abstractmethod
    def task(self) -> str:
        """Name of the task of the targets."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The outputs of a single-label dataset."""
        return self.outputs

    def decoded(self, *, at_least: int) -> Self:
        """Return the same samples with large JPEGs decoded at reduced size, but a short side of `at_least` or more."""
        other = copy.copy(self)
        other.at_least = at_least
        return other


class Source(Samples):
    """Samples by index.

    Sources hold no open files, so that they can be sent to worker processes.

    Attributes:
        targets: targets of all samples.
        lost: samples found missing when the dataset was listed.
    """

    targets: Targets
    lost: tuple[BadSample, ...] = ()

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self.targets.outputs

    @property
    def task(self) -> str:
        """Name of the task that the targets are for."""
        return self.targets.task

    @property
    def labels(self) -> np.ndarray:
        """The targets' rows: class indices, N int64, for a single-label dataset."""
        return self.targets.rows

    @abstractmethod
    def name(self, index: int) -> str:
        """Return a sample's name, which does not depend on the dataset's location."""

    def read(self, index: int) -> np.ndarray:
        """Return a sample's image, H, W, 3 uint8 (H, W, 1 from grey arrays), or raise BadSample."""
        raw = self.raw(index)
        assert raw is not None, "a source without encoded images reads them itself"
        return decode(raw, name=self.name(index), at_least=self.at_least)

    @abstractmethod
    def subset(self, indices: Sequence[int] | np.ndarray) -> "Source":
        """Return the source of some of the samples, in the order given."""

    def sample(self, index: int) -> Sample:
        """Return a sample, or raise BadSample."""
        return Sample({"image": self.read(index)}, self.targets.read(index), self.name(index))

    def held_by(self, index: int) -> str:
        """Return the key by which a sample is held out; samples with the same key stay together."""
        return self.name(index)

    def hold_out(self, *, share: float, seed: int) -> tuple["Source", "Source", tuple[str, ...]]:
        """Split off validation samples by name and seed; return both parts and remarks."""
        held, notes = self.choose_held_out(share=share, seed=seed)
        return self.subset(np.flatnonzero(~held)), self.subset(np.flatnonzero(held)), notes

    def choose_held_out(self, *, share: float, seed: int) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return a mask of samples to hold out by name and seed, N bool, and remarks."""
        keys = np.array([identity(self.held_by(index), seed) for index in range(len(self))], dtype=np.int64)
        held = choose_held_out(keys, self.targets.strata(), share=share)
        return held, held_out_notes(held, self.targets.alone(), share=share, seed=seed)

    def ready(self) -> None:
        """Prepare for fast reading, before workers are started."""

    def raw(self, index: int) -> Path | bytes | None:  # noqa: ARG002
        """Return the encoded image, as a path or bytes; None if there is none."""
        return None

    def array(self) -> np.ndarray | None:
        """Return all images, N, H, W, C uint8, if they are in memory at one size, else None."""
        return None

    def counts(self) -> np.ndarray:
        """Return the number of samples for each output."""
        return self.targets.counts()

    def fingerprint(self) -> str:
        """Return the SHA-256 of names, targets and, for arrays, pixels; independent of the dataset's location."""
        digest = hashlib.sha256()
        self.targets.update(digest)
        for index in range(len(self)):
            digest.update(self.name(index).encode() + b"\0")
        pixels = self.array()
        if pixels is not None:
            digest.update(repr(pixels.shape).encode())
            for image in pixels:
                digest.update(np.ascontiguousarray(image).data)
        return digest.hexdigest()

    def aligned(self, outputs: tuple[str, ...]) -> Self:
        """Return the source with targets mapped to other outputs, which include all of its own."""
        other = copy.copy(self)
        other.targets = self.targets.aligned(outputs)
        return other


class ArraySource(Source):
    """Images in memory.

    Args:
        images: N, H, W, C uint8 with one or three channels, or N, H, W.
        targets: targets, or class indices, N.
        classes: class names, if class indices are given.
        prefix: first part of the samples' names; the second is their number.
        ids: numbers of the samples, N; default: their positions.
    """

    def __init__(
        self,
        images: np.ndarray,
        targets: Targets | np.ndarray,
        *,
        classes: Sequence[str] = (),
        prefix: str = "picture",
        ids: np.ndarray | None = None,
    ) -> None:
        images = images[..., None] if images.ndim == 3 else images
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
            raise ValueError(
                f"{prefix}: got images of type {images.dtype} and shape {images.shape}; expected uint8 of shape (N, "
                "H, W, 3), (N, H, W, 1) or (N, H, W)"
            )
        self.targets = as_targets(targets, classes, count=len(images), where=prefix)
        self.images = images
        self.prefix = prefix
        self.ids = np.arange(len(images)) if ids is None else np.asarray(ids, dtype=np.int64)

    def name(self, index: int) -> str:
        """Return prefix and number of a sample."""
        return f"{self.prefix}[{self.ids[index]}]"

    def read(self, index: int) -> np.ndarray:
        """Return an image, H, W, C, as a view of the array."""
        return self.images[index]

    def array(self) -> np.ndarray:
        """Return all images, N, H, W, C."""
        return self.images

    def subset(self, indices: Sequence[int] | np.ndarray) -> "ArraySource":
        """Return the source of some of the samples."""
        keep = np.asarray(indices, dtype=np.int64)
        return ArraySource(self.images[keep], self.targets.subset(keep), prefix=self.prefix, ids=self.ids[keep])


class FileSource(Source):
    """Images in files.

    Args:
        root: folder that names are relative to.
        names: paths below the root, with forward slashes.
        targets: targets, or class indices, N.
        classes: class names, if class indices are given.
    """

    def __init__(
        self, root: Path, names: "Sequence[str] | Names", targets: Targets | np.ndarray, *, classes: Sequence[str] = ()
    ) -> None:
        self.root = root
        self.names = names if isinstance(names, Names) else Names(names)
        self.targets = as_targets(targets, classes, count=len(self.names), where=str(root))

    def name(self, index: int) -> str:
        """Return the path below the root."""
        # Names that are not valid Unicode can be opened but not printed.
        return self.names[index].encode(errors="backslashreplace").decode()

    def raw(self, index: int) -> Path:
        """Return the path of an image's file."""
        return self.root / self.names[index]

    def subset(self, indices: Sequence[int] | np.ndarray) -> "FileSource":
        """Return the source of some of the samples."""
        keep = np.asarray(indices, dtype=np.int64)
        part = copy.copy(self)
        part.names, part.targets = Names([self.names[int(index)] for index in keep]), self.targets.subset(keep)
        return part


def as_targets(targets: Targets | np.ndarray, classes: Sequence[str], *, count: int, where: str) -> Targets:
    """Return targets, converted from class indices if these were given."""
    if not isinstance(targets, Targets):
        return ClassTargets.of(targets, classes, count=count, where=where)
    if len(targets) != count:
        raise ValueError(f"{where}: got {len(targets)} targets for {count} samples; give one per sample")
    return targets


class Names:
    """Many strings in one block of memory, which forked processes share: reference counts would copy it."""

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
            raise IndexError("there is no name with that number")
        return self._text[ends[0] : ends[1]].decode(errors="surrogateescape")


class Stream(Samples):
    """A sequence of samples, for datasets too large to list.

    Attributes:
        length: number of samples in an epoch over all readers; None if unknown.
        lost: samples found missing, if the dataset was listed.
    """

    length: int | None = None
    lost: tuple[BadSample, ...] = ()

    def __init__(self, outputs: Sequence[str]) -> None:
        self._outputs = tuple(outputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self._outputs

    @property
    def task(self) -> str:
        """Name of the task of the targets; by default one class a sample."""
        return ClassTargets.task

    @abstractmethod
    def samples(
        self, *, seed: int, epoch: int, rank: int, world: int, worker: int, workers: int, skip: int = 0
    ) -> Iterator[Sample | BadSample]:
        """Yield one reader's part of an epoch, in an order that only depends on the arguments.

        Args:
            epoch: epoch, counted from 0.
            worker: worker of this process, counted from 0.
            workers: workers of each process, at least 1.
            skip: samples to skip without decoding, bad ones included.
        """

    def indexed(self) -> Source:
        """Return the images as an indexed source."""
        raise ValueError("this stream cannot be read by index; give validation images that can be, such as files")

    def hold_out(self, *, share: float, seed: int) -> tuple["Stream", Source, tuple[str, ...]]:  # noqa: ARG002
        """Return the stream without held-out images, these as an indexed source, and remarks."""
        raise ValueError("no images can be held out of this stream; give separate validation images")


@dataclass(frozen=True)
class Splits:
    """A dataset's own splits, before anything is held out.

    Args:
        train: training images.
        val: validation images; None if the dataset has none.
        notes: remarks for the log.
        groups: groups of the training images, if a column was given.
    """

    train: Source | Stream
    val: Source | None = None
    notes: tuple[str, ...] = ()
    groups: tuple[str, ...] | None = None
