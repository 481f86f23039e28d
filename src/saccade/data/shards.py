"""Tar shards in WebDataset's layout (`key.jpg` beside `key.cls` or `key.json`), streamed in constant memory."""

import copy
import glob
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice, product
from pathlib import Path

import numpy as np

from .draws import random_of, shuffled
from .image import BadSample, decode
from .reader import ReadOptions, holds, register_reader
from .source import Names, Sample, Source, Splits, Stream
from .split import choose_split, identity
from .tar import Entry, ShardSize, measure_shard, number_classes, read_member, shard_entries
from .targets import ClassTargets


@register_reader("shards")
class ShardReader:
    """Tar shards: a folder, a file or a pattern."""

    rank = 40

    def matches(self, spec: str, path: Path) -> bool:
        """Whether the spec has this layout."""
        return (
            _is_pattern(spec)
            or (path.suffix.lower() == ".tar" and path.is_file())
            or (path.is_dir() and holds(path, "*.tar"))
        )

    def open(self, spec: str, path: Path, options: ReadOptions) -> Splits:
        """Open the dataset."""
        return open_shards(spec if _is_pattern(spec) else str(path), buffer=options.buffer)


class ShardStream(Stream):
    """Images of tar shards as a stream.

    Shards are distributed over the readers (workers of all processes); samples are, if there are fewer shards than
    readers. Shards are shuffled by seed and epoch, samples inside a buffer.

    Args:
        buffer: size of each reader's shuffle buffer, in undecoded samples.
        without: keys of samples to leave out, sorted, int64.
        length: number of samples, if known.
    """

    def __init__(
        self,
        shards: Sequence[Path],
        *,
        classes: Sequence[str],
        buffer: int = 4096,
        without: np.ndarray | None = None,
        length: int | None = None,
    ) -> None:
        if buffer < 1:
            raise ValueError(f"buffer={buffer}: it must hold at least one sample")
        super().__init__(classes)
        self.shards = list(shards)
        self.buffer = buffer
        self.without = without
        self.length = length
        self._usual: ShardSize | None = None

    def samples(
        self, *, seed: int, epoch: int, rank: int, world: int, worker: int, workers: int, skip: int = 0
    ) -> Iterator[Sample | BadSample]:
        """Yield one reader's part of an epoch; see `Stream`."""
        reader, readers = rank * workers + worker, world * workers
        order = random_of(seed, epoch).permutation(len(self.shards))  # the same for all readers
        mine = order[reader::readers] if len(order) >= readers else order
        entries: Iterator[Entry | BadSample] = chain.from_iterable(self._entries(int(shard)) for shard in mine)
        if len(order) < readers:
            entries = islice(entries, reader, None, readers)
        random = random_of(seed, epoch, reader)
        for entry in islice(shuffled(self._loaded(entries, skip), buffer=self.buffer, random=random), skip, None):
            yield self._finish(entry)

    def indexed(self) -> "ShardSource":
        """Return the images as an indexed source; the headers of all shards are read once."""
        source = index_shards(self.shards, classes=self.classes, without=self.without)
        self.lost = source.lost
        return source

    def hold_out(self, *, share: float, seed: int) -> tuple["ShardStream", Source, tuple[str, ...]]:
        """Split off validation images by name and seed; the headers of all shards are read once."""
        source = self.indexed()
        held, notes = source.choose_held_out(share=share, seed=seed)
        left = copy.copy(self)
        left.without = np.sort([identity(source.name(int(index))) for index in np.flatnonzero(held)])
        left.length = int((~held).sum())
        return left, source.subset(np.flatnonzero(held)), notes

    def _loaded(self, entries: Iterator[Entry | BadSample], skip: int) -> Iterator[Entry | BadSample]:
        """Read samples in file order; samples that may still be skipped are read when they are reached."""
        for number, entry in enumerate(entries):
            if (skip == 0 or number >= skip + self.buffer - 1) and isinstance(entry, Entry):
                with suppress(OSError):  # tried again when it is reached, and then reported
                    entry.data = self._read(entry)
            yield entry

    def _entries(self, shard: int) -> Iterator[Entry | BadSample]:
        for entry in shard_entries(self.shards[shard], shard, self.classes, usual=self._shard_size):
            if self.without is not None and isinstance(entry, Entry):
                key = identity(entry.name)
                place = int(np.searchsorted(self.without, key))
                if place < len(self.without) and self.without[place] == key:
                    continue
            yield entry

    def _shard_size(self) -> ShardSize:
        if self._usual is None:
            self._usual = measure_shard(self.shards)
        return self._usual

    def _read(self, entry: Entry) -> bytes:
        return read_member(self.shards[entry.shard], offset=entry.offset, size=entry.size)

    def _finish(self, entry: Entry | BadSample) -> Sample | BadSample:
        if isinstance(entry, BadSample):
            return entry
        try:
            data = self._read(entry) if entry.data is None else entry.data
            image = decode(data, name=entry.name, at_least=self.at_least)
            return Sample({"image": image}, entry.label, entry.name, identity(entry.name))
        except BadSample as bad:
            return bad
        except OSError as error:
            return BadSample(entry.name, f"its shard cannot be read ({error})")


class ShardSource(Source):
    """Images of tar shards by index, from a table of offsets.

    Args:
        places: shard, offset and size of each image, N, 3 int64.
    """

    def __init__(
        self,
        shards: Sequence[Path],
        names: Sequence[str],
        places: np.ndarray,
        labels: np.ndarray,
        *,
        classes: Sequence[str],
    ) -> None:
        self.shards = list(shards)
        self.names = Names(names)
        self.places = places
        self.targets = ClassTargets.of(labels, classes, count=len(names), where="shards")

    def name(self, index: int) -> str:
        """Return the shard's name and the image's name inside it."""
        return self.names[index]

    def raw(self, index: int) -> bytes:
        """Return the encoded image."""
        shard, offset, size = self.places[index].tolist()
        try:
            return read_member(self.shards[shard], offset=offset, size=size)
        except OSError as error:
            raise BadSample(self.name(index), f"its shard cannot be read ({error})") from error

    def subset(self, indices: Sequence[int] | np.ndarray) -> "ShardSource":
        """Return the source of some of the images."""
        keep = np.asarray(indices, dtype=np.int64)
        part = copy.copy(self)
        part.names = Names([self.names[int(index)] for index in keep])
        part.places, part.targets, part.lost = self.places[keep], self.targets.subset(keep), ()
        return part


def open_shards(spec: str, *, buffer: int = 4096) -> Splits:
    """Open tar shards: a folder, one file, or a pattern with `*`, `?` or `{000..127}`.

    A folder may have split folders, or shards named after splits (`train-0001.tar`, `val-0001.tar`). Classes are the
    lines of `classes.txt` beside the shards; without it they are the numbers in the `.cls` files.
    """
    groups, notes = _find(spec)
    classes = _read_classes(groups["train"])
    length = None
    if not classes:
        labels, classes = number_classes(groups["train"])
        length = len(labels)
        notes += (f"there is no classes.txt beside the shards: {len(classes)} numbered classes",)
    train = ShardStream(groups["train"], classes=classes, buffer=buffer, length=length)
    val = index_shards(groups["val"], classes=classes) if "val" in groups else None
    return Splits(train, val, notes)


def index_shards(shards: Sequence[Path], *, classes: Sequence[str], without: np.ndarray | None = None) -> ShardSource:
    """List the images of shards; a truncated shard contributes its readable ones."""
    stream = ShardStream(shards, classes=classes, without=without)
    entries = [entry for shard in range(len(shards)) for entry in stream._entries(shard)]
    found = [entry for entry in entries if isinstance(entry, Entry)]
    places = np.array([(entry.shard, entry.offset, entry.size) for entry in found], dtype=np.int64).reshape(-1, 3)
    labels = np.array([entry.label for entry in found], dtype=np.int64)
    source = ShardSource(shards, [entry.name for entry in found], places, labels, classes=classes)
    source.lost = tuple(entry for entry in entries if isinstance(entry, BadSample))
    return source


def _find(spec: str) -> tuple[dict[str, list[Path]], tuple[str, ...]]:
    """Find the shards of training and validation."""
    path = Path(spec).expanduser()
    if path.is_dir():
        groups: dict[str, list[Path]] = {}
        for shard in sorted(path.rglob("*.tar")):
            inner = shard.relative_to(path).parts
            role = inner[0] if len(inner) > 1 else re.split(r"[-_.\d]", shard.stem)[0]
            groups.setdefault(role, []).append(shard)
        roles, notes = choose_split(list(groups))
        if roles:
            return {role: groups[name] for role, name in roles.items()}, notes
        return {"train": sorted(path.rglob("*.tar"))}, ()
    names = [str(path)] if path.is_file() else [n for p in _braces(str(path)) for n in sorted(glob.glob(p))]
    if not names:
        raise FileNotFoundError(f"no shards match {spec!r}; give a directory or a pattern such as shards/train-*.tar")
    return {"train": [Path(name) for name in names]}, ()


def _is_pattern(spec: str) -> bool:
    return spec.endswith(".tar") and bool(set(spec) & set("*?[{"))


def _braces(pattern: str) -> list[str]:
    """Expand `{000..127}` and `{a,b}`."""
    pieces: list[list[str]] = []
    for piece in re.split(r"(\{[^{}]*\})", pattern):
        span = re.fullmatch(r"\{(\d+)\.\.(\d+)\}", piece)
        if span:
            first, last = span[1], span[2]
            pieces.append([str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)])
        else:
            pieces.append(piece[1:-1].split(",") if piece.startswith("{") else [piece])
    return ["".join(parts) for parts in product(*pieces)]


def _read_classes(shards: Sequence[Path]) -> tuple[str, ...]:
    for folder in dict.fromkeys(place for shard in shards for place in (shard.parent, shard.parent.parent)):
        if (folder / "classes.txt").is_file():
            lines = (folder / "classes.txt").read_text(encoding="utf-8").splitlines()
            return tuple(line.strip() for line in lines if line.strip())
    return ()
