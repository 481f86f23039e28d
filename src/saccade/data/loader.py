"""Batches of samples that worker processes read from files during training.

Workers decode and crop; the rest of the augmentation runs on the batch. An unreadable sample is listed in `bad` and
replaced by another one, chosen by its random key; training stops when there are too many.
"""

import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from .draws import Order, key, uniform
from .feed import Batch, Expand, Feed, sample_keys, to_device
from .framing import Encoded, Encoder
from .image import BadSample, Fault, count_bad
from .reading import in_threads, make_loader
from .source import Sample, Source, Stream

INSTEAD = 0x1257  # purpose of the draws for replacements
TRIES = 20


class TooManyBad(ValueError):  # noqa: N818
    """More samples are unreadable than `data.bad_limit` allows."""


class FileFeed(Feed):
    """Batches of a source, read by worker processes.

    Args:
        expand: augmentation of batches.
        encode: encodes single samples.
        workers: reading processes; 0 reads in this one.
        bad_limit: share of unreadable images that stops training.
        threads: reading threads where `workers` is 0.
    """

    order: Order

    def __init__(
        self,
        source: Source,
        *,
        order: Order,
        expand: Expand,
        encode: Encoder,
        device: torch.device,
        workers: int,
        bad_limit: float,
        threads: int = 1,
    ) -> None:
        super().__init__(expand.after_framing())
        self.source, self.order, self.steps, self.device = source, order, order.steps, device
        self.allowed = bad_limit * len(source)
        self.plan: list[list[tuple[int, int]]] = []  # indices and keys of the next batches
        self.loader = make_loader(_Reading(source, encode, 1 if workers else threads), workers, batch_sampler=self.plan)

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """Yield samples and draws."""
        self.source.ready()
        index, copies = self.order.epoch(epoch)
        rng_keys = sample_keys(self.order.seed, epoch, index, copies).tolist()
        pairs = list(zip(index.tolist(), rng_keys, strict=True))
        self.plan[:] = [pairs[mine] for mine in self.order.batches(start=start)]
        for batch, bad in self.loader:
            note_bad(self.bad, bad, self.allowed, of=len(self.source))
            if batch is None:
                raise too_many_bad(*bad[-1])
            yield self._named({name: to_device(tensor, self.device) for name, tensor in batch.items()})

    def close(self) -> None:
        """Stop the workers."""
        self.loader._iterator = None


class StreamFeed(Feed):
    """Batches of a stream; each worker reads a part of it.

    Args:
        steps: batches of an epoch; a stream that ends earlier is restarted.
        batch_size: batch size of this process.
        expand: augmentation of batches.
        encode: encodes single samples.
        workers: reading processes; 0 reads in this one.
        bad_limit: share of unreadable images that stops training.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        steps: int,
        batch_size: int,
        seed: int,
        expand: Expand,
        encode: Encoder,
        device: torch.device,
        workers: int,
        bad_limit: float,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(expand.after_framing())
        self.device, self.steps, self.batch_size = device, steps, batch_size
        self.stream, self.bad_limit, self.samples = stream, bad_limit, steps * batch_size * world
        self.reading = _Streaming(stream, encode, seed=seed, batch_size=batch_size, rank=rank, world=world)
        self.workers = workers

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """Yield samples and draws."""
        self._note([(bad.name, bad.fault) for bad in self.stream.lost])
        self.reading.epoch, self.reading.start = epoch, start
        loader = make_loader(self.reading, self.workers, batch_size=None, persistent=False)
        batches = iter(loader)
        for _ in range(start, self.steps):
            batch, bad = next(batches)
            self._note(bad)
            yield self._named({name: to_device(tensor, self.device) for name, tensor in batch.items()})

    def _note(self, bad: list[tuple[str, Fault]]) -> None:
        named = self.bad | dict(bad)
        whole = self.samples + count_bad(named) - len(named)  # without samples lost in damaged shards
        note_bad(self.bad, bad, self.bad_limit * whole, of=whole)


def replacement(rng_key: int, attempt: int, length: int) -> int:
    """Return the index of the replacement of an unreadable image with the given random key."""
    return int(uniform(rng_key, INSTEAD + attempt) * length)


def too_many_bad(name: str, fault: Fault) -> TooManyBad:
    """Return the error for an image whose replacements are all unreadable."""
    return TooManyBad(
        f"{TRIES} images in a row cannot be read, the last one {name}: {fault.reason}. Check that the dataset is "
        "still available, then resume"
    )


def note_bad(seen: dict[str, Fault], bad: list[tuple[str, Fault]], allowed: float, *, of: int) -> None:
    """Add unreadable images to `seen`, warn of new ones, and raise if there are too many."""
    for name, fault in bad:
        if name not in seen:
            warnings.warn(f"{name} cannot be read and is skipped: {fault.reason}", stacklevel=2)
        seen[name] = fault
    check_bad(seen, allowed, of=of)


def check_bad(seen: dict[str, Fault], allowed: float, *, of: int) -> None:
    """Raise if more images are unreadable than allowed; one always is."""
    count = count_bad(seen)
    if count > max(allowed, 1):
        first = "; ".join(f"{name}: {fault.reason}" for name, fault in list(seen.items())[:5])
        raise TooManyBad(
            f"{count} of {of} images cannot be read, more than the limit of {allowed:g}: {first}. `saccade data "
            "check` lists all of them; repair or remove them, or raise data.bad_limit"
        )


Read = tuple[Encoded | None, int, list[tuple[str, Fault]]]  # sample, key, faults


class _Reading(Dataset[Read]):
    """Reads and encodes one sample."""

    def __init__(self, source: Source, encode: Encoder, threads: int = 1) -> None:
        self.source, self.encode, self.threads = source, encode, threads

    def __getitems__(self, items: list[tuple[int, int]]) -> list[Read]:
        return list(in_threads(self.__getitem__, items, self.threads))

    def __getitem__(self, item: tuple[int, int]) -> Read:
        index, rng_key = item
        bad: list[tuple[str, Fault]] = []
        for attempt in range(TRIES):
            try:
                return self.encode(self.source.sample(index), rng_key), rng_key, bad
            except BadSample as error:
                bad.append((error.name, error.fault))
                index = replacement(rng_key, attempt, len(self.source))
        return None, rng_key, bad

    def collate(self, items: list[Read]) -> tuple[Batch | None, list[tuple[str, Fault]]]:
        return _collate(items, self.encode)


def _collate(items: list[Read], encode: Encoder) -> tuple[Batch | None, list[tuple[str, Fault]]]:
    samples, rng_keys, bad = zip(*items, strict=True)
    named = [entry for part in bad for entry in part]
    if any(sample is None for sample in samples):
        return None, named
    return {**encode.collate(list(samples)), "key": torch.tensor(rng_keys)}, named


class _Streaming(IterableDataset[Any]):
    """Reads whole batches of a stream: worker w of n yields batches w, w + n, ...

    A batch takes the next samples, readable or not, so that resuming can skip samples without decoding them. A bad one
    is replaced by a good one of its batch or, if there is none, by the next good one.
    """

    def __init__(self, stream: Stream, encode: Encoder, *, seed: int, batch_size: int, rank: int, world: int) -> None:
        self.stream, self.encode = stream, encode
        self.seed, self.batch_size, self.rank, self.world = seed, batch_size, rank, world
        self.epoch = self.start = 0

    def __iter__(self) -> Iterator[tuple[Batch, list[tuple[str, Fault]]]]:
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        worker = (number + self.start) % workers  # the loader asks worker 0 first, which yields the next batch
        before = self.start // workers + (worker < self.start % workers)  # batches that this worker has yielded
        samples = self._samples(worker, workers, skip=before * self.batch_size)
        ahead: deque[Sample | BadSample] = deque()  # already read, for later batches
        while True:
            batch = [ahead.popleft() if ahead else next(samples) for _ in range(self.batch_size)]
            if all(isinstance(sample, BadSample) for sample in batch):
                while not (ahead and isinstance(ahead[-1], Sample)) and len(ahead) < TRIES:
                    ahead.append(next(samples))
            yield self._batch(batch, ahead)

    def _batch(
        self, samples: list[Sample | BadSample], ahead: Sequence[Sample | BadSample]
    ) -> tuple[Batch, list[tuple[str, Fault]]]:
        good = [sample for sample in samples if isinstance(sample, Sample)]
        bad = [(sample.name, sample.fault) for sample in samples if isinstance(sample, BadSample)]
        instead, first = good, len(good)  # copies of an image are numbered, so that each has its own draws
        if not good:
            if not (ahead and isinstance(ahead[-1], Sample)):
                raise too_many_bad(*bad[-1])
            instead, first = [ahead[-1]], self.batch_size * len(ahead)
        items: list[Read] = []
        for place, sample in enumerate([*good, *instead * (len(bad) // len(instead) + 1)][: len(samples)]):
            rng_key = key(
                self.seed, self.epoch, sample.key & (2**63 - 1), 0 if place < len(good) else first + place - len(good)
            )
            items.append((self.encode(sample, rng_key), rng_key, []))
        batch, _ = _collate(items, self.encode)
        assert batch is not None
        return batch, bad

    def _samples(self, worker: int, workers: int, *, skip: int) -> Iterator[Sample | BadSample]:
        """Yield a worker's samples without the first `skip`; the stream is restarted in another order when it ends."""
        place = {"seed": self.seed, "rank": self.rank, "world": self.world, "worker": worker, "workers": workers}
        for again in range(1_000_000):
            epoch, empty = self.epoch + again * 1_000_003, True
            for sample in self.stream.samples(epoch=epoch, skip=skip, **place):
                empty = False
                yield sample
            if not empty:
                skip = 0
                continue
            length = sum(1 for _ in self.stream.samples(epoch=epoch, **place)) if skip else 0
            if not length:
                raise TooManyBad("a part of the stream is empty; use fewer workers or more shards")
            skip -= length
