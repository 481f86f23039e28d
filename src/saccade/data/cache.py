"""In-memory cache of decoded or encoded images for small datasets; results are bit-identical."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..support.wording import count_are
from .draws import Order
from .feed import Batch, Expand, ResidentFeed
from .framing import Encoded, Encoder, Framing, ImageEncoder
from .image import BadSample
from .loader import TRIES, note_bad, replacement, too_many_bad
from .reading import in_threads, read_all
from .source import Source

SAMPLED = 16  # images from which the size of all is estimated


class EncodedSamples(NamedTuple):
    """Encoded samples of equal shape."""

    columns: dict[str, Tensor]  # N, ... by name
    unreadable: dict[int, BadSample]  # by index


class Memory:
    """Cache of the samples last read, for later runs in the process with the same files and encoding."""

    def __init__(self) -> None:
        self._read: tuple[Any, Source, EncodedSamples] | None = None
        self._batches: tuple[Any, Any] | None = None

    def keep(self, source: Source, encode: Encoder, device: torch.device, samples: EncodedSamples) -> None:
        """Store training samples."""
        if (how := _way(encode, source, device)) is not None:
            self._read = how, source, samples

    def recall(self, source: Source, encode: Encoder, device: torch.device) -> EncodedSamples | None:
        """Return cached training samples; None if they are not cached."""
        if self._read is None or _way(encode, source, device) != self._read[0]:
            return None
        _, known, found = self._read
        if len(known) == len(source) and known.fingerprint() == source.fingerprint():
            return found
        places = {known.name(index): index for index in range(len(known))}
        mine = [places.get(source.name(index), -1) for index in range(len(source))]
        if len(places) < len(known) or -1 in mine or "target" not in found.columns:
            return None
        columns = {name: column[torch.tensor(mine, device=column.device)] for name, column in found.columns.items()}
        bad = {index: found.unreadable[place] for index, place in enumerate(mine) if place in found.unreadable}
        good = np.setdiff1d(np.arange(len(mine)), list(bad))
        same = np.array_equal(columns["target"].cpu().numpy()[good], source.targets.rows[good])
        return EncodedSamples(columns, bad) if same else None

    def keep_batches(self, how: Any, batches: Any) -> None:
        """Store validation batches by all they depend on."""
        self._batches = how, batches

    def recall_batches(self, how: Any) -> Any:
        """Return cached validation batches; None if they are not cached."""
        return self._batches[1] if self._batches is not None and self._batches[0] == how else None


def _way(encode: Encoder, source: Source, device: torch.device) -> Any:
    """Return the cache key of an encoder; None if samples of it cannot be cached."""
    if type(encode) is not ImageEncoder or not source.targets.in_rows:
        return None
    return replace(encode.framing, config=None), source.at_least, source.outputs, device


class EncodedFeed(ResidentFeed):
    """Files with deterministic framing: encoded before the first step and resident from then on.

    Batches, including replacements of unreadable files, are the same as those of `FileFeed`.

    Args:
        encode: encodes a sample to tensors of fixed shape.
        size: bytes of all encoded samples, for the note.
        bad_limit: share of unreadable samples that stops training.
        memory: cache of samples read for earlier runs.
    """

    def __init__(
        self,
        source: Source,
        *,
        order: Order,
        expand: Expand,
        encode: Encoder,
        size: int,
        device: torch.device,
        threads: int,
        bad_limit: float,
        memory: Memory | None = None,
    ) -> None:
        super().__init__({}, order=order, expand=expand)
        self.memory = Memory() if memory is None else memory
        self.source, self.encode, self.threads, self.place = source, encode, threads, device
        self.allowed = bad_limit * len(source)
        self.unreadable: dict[int, BadSample] = {}
        self.notes = [cache_note(len(source), size)]

    @property
    def device(self) -> torch.device:
        """The device that holds the samples."""
        return self.place

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """Yield indices and random keys."""
        if not self.columns:
            found = self.memory.recall(self.source, self.encode, self.place)
            if found is None:
                found = self._read()
                self.memory.keep(self.source, self.encode, self.place, found)
            self.unreadable = found.unreadable
            bad = [(error.name, error.fault) for error in self.unreadable.values()]
            note_bad(self.bad, bad, self.allowed, of=len(self.source))
            self.columns = found.columns
        yield from super().epoch(epoch, start=start)

    def _read(self) -> EncodedSamples:
        columns: dict[str, Tensor] = {}
        unreadable: dict[int, BadSample] = {}
        for index, found in enumerate(read_all(self._try, len(self.source), self.threads)):
            if isinstance(found, BadSample):
                unreadable[index] = found
                continue
            for name, part in found.items():
                if name not in columns:
                    columns[name] = torch.zeros(len(self.source), *part.shape, dtype=part.dtype)
                columns[name][index] = part
        return EncodedSamples({name: column.to(self.place) for name, column in columns.items()}, unreadable)

    def _try(self, index: int) -> Encoded | BadSample:
        try:
            return self.encode(self.source.sample(index))
        except BadSample as error:
            return error

    def _readable(self, index: Tensor, keys: Tensor) -> Tensor:
        if not self.unreadable:
            return index
        places, rng_keys = index.tolist(), keys.tolist()
        for place in np.flatnonzero(np.isin(places, list(self.unreadable))).tolist():
            for attempt in range(TRIES):
                if places[place] not in self.unreadable:
                    break
                last = self.unreadable[places[place]]
                places[place] = replacement(rng_keys[place], attempt, len(self.source))
            else:
                raise too_many_bad(last.name, last.fault)
        return torch.tensor(places)


class CachedSource(Source):
    """A source of files that decodes each image once, up to `limit` bytes in total.

    Images that do not fit, or cannot be read, are read each time.
    """

    def __init__(self, source: Source, *, limit: float, threads: int) -> None:
        self.source, self.limit, self.threads = source, limit, threads
        self.targets, self.lost = source.targets, source.lost
        self.images: dict[int, np.ndarray] | None = None

    def ready(self) -> None:
        """Decode the images, in memory that forked processes share."""
        if self.images is not None:
            return
        self.images, used = {}, 0
        for index, image in enumerate(in_threads(self._try, range(len(self)), self.threads)):
            used += image.nbytes if image is not None else 0
            if used > self.limit:
                break
            if image is not None:
                self.images[index] = image

    def _try(self, index: int) -> np.ndarray | None:
        try:
            return self.source.read(index)
        except BadSample:
            return None

    def read(self, index: int) -> np.ndarray:
        """Return an image as the source would."""
        found = (self.images or {}).get(index)
        return self.source.read(index) if found is None else found

    def name(self, index: int) -> str:
        """Return an image's name in the source."""
        return self.source.name(index)

    def raw(self, index: int) -> Path | bytes | None:
        """Return the encoded image."""
        return self.source.raw(index)

    def subset(self, indices: Sequence[int] | np.ndarray) -> Source:
        """Return the uncached source of some of the images."""
        return self.source.subset(indices)


def framed_bytes(count: int, framing: Framing) -> int:
    """Return the size of framed images in bytes."""
    return count * framing.channels * framing.pixels


def decoded_bytes(source: Source) -> int:
    """Estimate the size of all decoded images of a source in bytes, from a few of them."""
    return _estimated(source, lambda index: source.read(index).nbytes)


def encoded_bytes(source: Source, encode: Encoder) -> int:
    """Estimate the size of all encoded samples of a source in bytes, masks and runs included, from a few of them."""
    return _estimated(source, lambda index: sum(part.nbytes for part in encode(source.sample(index)).values()))


def _estimated(source: Source, measure: Callable[[int], int]) -> int:
    sizes = []
    for index in range(0, len(source), -(-len(source) // SAMPLED)):
        with suppress(BadSample):
            sizes.append(measure(index))
    return round(float(np.mean(sizes)) * len(source)) if sizes else 0


def cache_note(count: int, size: int) -> str:
    """Return a note on cached images."""
    kept = f"{count_are(count, 'image')} decoded once and kept in memory ({size / 1e6:,.0f} MB)"
    return f"{kept}; override with --set data.resident=never"
