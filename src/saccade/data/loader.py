"""Batches of pictures that are read from files while the model trains.

Other processes decode and crop; the rest of the augmentation is done on the batch. A picture that cannot be read is
replaced by another one, found by its own draws, named in `bad`, and training stops when there are too many.
"""

import math
import signal
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from ..config import AugmentConfig
from .augment import AREA, LEFT, RATIO, TOP, Augment
from .draws import key, uniform_number
from .feed import Feed, Inputs, picture_keys, to_device
from .order import Order
from .picture import BadPicture, count_bad
from .source import Sample, Source, Stream
from .threads import in_threads

INSTEAD = 0x1257  # purpose of the draws that choose a replacement
TRIES = 20
GRACE = 30  # seconds a reading process lives on after SIGTERM; the main one saves meanwhile and then ends it


class TooManyBad(ValueError):  # noqa: N818
    """So many pictures could not be read that going on would train on another set than was given."""


@dataclass(frozen=True)
class Framing:
    """How a picture of any size becomes a square one.

    Args:
        img_size: side of the square.
        config: the random crops of training; None takes the middle.
        shorter: side the shorter one is brought to before the middle is taken.
        channels: 3, or 1 to make pictures grey.
    """

    img_size: int
    config: AugmentConfig | None = None
    shorter: int | None = None
    channels: int = 3

    @property
    def least(self) -> int:
        """Short side, in pixels, from which on a larger picture shows no more: no crop has then to be enlarged.

        The middle is always made smaller; twice its side lets the resampling, not the decoder, choose what is kept.
        """
        if self.config is None or self.config.crop != "resized":
            return 2 * (self.shorter or self.img_size)
        narrowest = min(self.config.ratio[0], 1 / self.config.ratio[1], 1.0)
        return math.ceil(self.img_size / math.sqrt(max(self.config.scale[0] * narrowest, 1e-6)))

    def __call__(self, picture: np.ndarray, word: int = 0) -> Tensor:
        """Return a picture, H, W, C, as uint8 C, img_size, img_size; `word` is the key of its draws."""
        height, width, channels = picture.shape
        image = Image.fromarray(picture[..., 0] if channels == 1 else picture)
        if self.config is not None and self.config.crop == "resized":
            box = random_box(height, width, word, self.config)
        else:
            box = middle_box(height, width, self.img_size / (self.shorter or self.img_size))
        image = image.resize((self.img_size, self.img_size), Image.Resampling.BICUBIC, box=box, reducing_gap=3.0)
        if self.channels == 1 or channels == 1:
            image = image.convert("L" if self.channels == 1 else "RGB")
        array = np.asarray(image)
        return torch.from_numpy(np.array(array[None] if array.ndim == 2 else array.transpose(2, 0, 1)))


def random_box(height: int, width: int, word: int, config: AugmentConfig) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of a random part of a picture, of random area and shape."""
    low, high = config.scale
    area = (low + uniform_number(word, AREA) * (high - low)) * height * width
    narrow, wide = (math.log(side) for side in config.ratio)
    ratio = math.exp(narrow + uniform_number(word, RATIO) * (wide - narrow))
    w, h = min(math.sqrt(area * ratio), width), min(math.sqrt(area / ratio), height)
    left, top = uniform_number(word, LEFT) * (width - w), uniform_number(word, TOP) * (height - h)
    return left, top, left + w, top + h


def middle_box(height: int, width: int, share: float) -> tuple[float, float, float, float]:
    """Return the square in the middle of a picture whose side is a share of the shorter one."""
    side = min(height, width) * share
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


class FileFeed(Feed):
    """Batches of a source, read by worker processes.

    Args:
        source: the pictures.
        order: of the batches.
        augment: the part of the augmentation that is done on batches.
        framing: the part that is done on each picture.
        device: where the batches go.
        workers: processes that read; 0 reads in this one.
        bad_limit: share of the set at which unreadable pictures stop training.
        threads: that read where no other process does.
        rank: of this process.
        world: how many processes share a batch.
    """

    def __init__(
        self,
        source: Source,
        *,
        order: Order,
        augment: Augment,
        framing: Framing,
        device: torch.device,
        workers: int,
        bad_limit: float,
        threads: int = 1,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__()
        self.source, self.order, self.augment, self.device = source, order, augment.after_framing(), device
        self.rank, self.world = rank, world
        self.steps = order.steps
        self.allowed = bad_limit * len(source)
        self.plan = _Plan()
        self.loader = _loader(_Reading(source, framing, 1 if workers else threads), workers, batch_sampler=self.plan)

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[Inputs]:
        """Yield pictures and draws."""
        self.source.ready()
        index, copies = self.order.epoch(epoch)
        words = picture_keys(self.order.seed, epoch, index, copies).tolist()
        pairs = list(zip(index.tolist(), words, strict=True))
        places = self.order.batches(start=start, rank=self.rank, world=self.world)
        self.plan.batches = [pairs[mine] for mine in places]
        for pictures, labels, keys, bad in self.loader:
            note_bad(self.bad, bad, self.allowed, of=len(self.source))
            if pictures is None:
                raise gone(*bad[-1])
            yield Inputs(*(to_device(tensor, self.device) for tensor in (pictures, labels, keys)))

    def close(self) -> None:
        """End the processes that read."""
        self.loader._iterator = None


class StreamFeed(Feed):
    """Batches of a stream, each worker reading a part of it.

    Args:
        stream: the pictures.
        steps: batches of an epoch; a stream that ends before begins again.
        batch_size: of this process.
        seed: of the run.
        augment: the part of the augmentation that is done on batches.
        framing: the part that is done on each picture.
        device: where the batches go.
        workers: processes that read; 0 reads in this one.
        bad_limit: share of the pictures read at which unreadable ones stop training.
        rank: of this process.
        world: how many processes there are.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        steps: int,
        batch_size: int,
        seed: int,
        augment: Augment,
        framing: Framing,
        device: torch.device,
        workers: int,
        bad_limit: float,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__()
        self.augment, self.device, self.steps, self.batch_size = augment.after_framing(), device, steps, batch_size
        self.stream, self.bad_limit, self.pictures = stream, bad_limit, steps * batch_size * world
        self.reading = _Streaming(stream, framing, seed=seed, batch_size=batch_size, rank=rank, world=world)
        self.workers = workers

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[Inputs]:
        """Yield pictures and draws."""
        self._note([(bad.name, bad.reason) for bad in self.stream.lost])
        self.reading.epoch, self.reading.start = epoch, start
        loader = _loader(self.reading, self.workers, batch_size=None, persistent=False)
        batches = iter(loader)
        for _ in range(start, self.steps):
            pictures, labels, keys, bad = next(batches)
            self._note(bad)
            yield Inputs(*(to_device(tensor, self.device) for tensor in (pictures, labels, keys)))

    def _note(self, bad: list[tuple[str, str]]) -> None:
        named = self.bad | dict(bad)
        whole = self.pictures + count_bad(named) - len(named)  # what a shard has lost is not counted in an epoch
        note_bad(self.bad, bad, self.bad_limit * whole, of=whole)


def replacement(word: int, attempt: int, length: int) -> int:
    """Return the picture that takes the place of one that cannot be read; `word` is the key of its draws."""
    return int(uniform_number(word, INSTEAD + attempt) * length)


def gone(name: str, reason: str) -> TooManyBad:
    """Return what is raised when no replacement can be read either."""
    return TooManyBad(
        f"{TRIES} pictures drawn one after another cannot be read, the last {name}: {reason}. Is the data still where "
        "it was? Bring it back, then resume"
    )


def note_bad(seen: dict[str, str], bad: list[tuple[str, str]], allowed: float, *, of: int) -> None:
    """Add unreadable pictures to those seen, with a warning for each new one, and stop if they are too many."""
    for name, reason in bad:
        if name not in seen:
            seen[name] = reason
            warnings.warn(f"{name} cannot be read and is left out: {reason}", stacklevel=2)
    check_bad(seen, allowed, of=of)


def check_bad(seen: dict[str, str], allowed: float, *, of: int) -> None:
    """Stop if more pictures cannot be read than are allowed; one always may."""
    count = count_bad(seen)
    if count > max(allowed, 1):
        first = "; ".join(f"{name}: {reason}" for name, reason in list(seen.items())[:5])
        raise TooManyBad(
            f"{count} of {of} pictures cannot be read, more than the limit of {allowed:g}: {first}. `saccade data "
            "check` names them all; repair or remove them, or raise data.bad_limit"
        )


def _loader(dataset: Any, workers: int, *, persistent: bool = True, **options: Any) -> DataLoader[Any]:
    if workers:
        # Threads of the parent do not survive a fork; the readers need none of them.
        options |= {"persistent_workers": persistent, "prefetch_factor": 4, "worker_init_fn": settle}
    return DataLoader(dataset, num_workers=workers, collate_fn=_collate if persistent else None, **options)


def settle(_: int) -> None:
    """Prepare a process that reads: one thread, and time to serve the last step when the whole group is stopped."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE))


class _Plan:
    """The batches a loader is to read next."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[int, int]]] = []

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


Read = tuple[Tensor | None, int, int, list[tuple[str, str]]]  # picture, label, key, those that could not be read


class _Reading(Dataset[Read]):
    """Read one picture and frame it."""

    def __init__(self, source: Source, framing: Framing, threads: int = 1) -> None:
        self.source, self.framing, self.threads = source, framing, threads

    def __getitems__(self, items: list[tuple[int, int]]) -> list[Read]:
        return list(in_threads(self.__getitem__, items, self.threads))

    def __getitem__(self, item: tuple[int, int]) -> Read:
        index, word = item
        bad: list[tuple[str, str]] = []
        for attempt in range(TRIES):
            try:
                picture = self.source.read(index)
                return self.framing(picture, word), int(self.source.labels[index]), word, bad
            except BadPicture as error:
                bad.append((error.name, error.reason))
                index = replacement(word, attempt, len(self.source))
        return None, 0, word, bad


def _collate(items: list[Read]) -> Any:
    pictures, labels, words, bad = zip(*items, strict=True)
    found = torch.stack(pictures) if all(picture is not None for picture in pictures) else None
    return found, torch.tensor(labels), torch.tensor(words), [entry for part in bad for entry in part]


class _Streaming(IterableDataset[Any]):
    """Read whole batches of a stream: worker w of n gives batches w, w + n, ...

    A batch is made of the next samples, whether they can be read or not, so that those before a step can be passed over
    without decoding them; a bad one is replaced by a good one of its batch or, where it has none, by the next good one.
    """

    def __init__(self, stream: Stream, framing: Framing, *, seed: int, batch_size: int, rank: int, world: int) -> None:
        self.stream, self.framing = stream, framing
        self.seed, self.batch_size, self.rank, self.world = seed, batch_size, rank, world
        self.epoch = self.start = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor, list[tuple[str, str]]]]:
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        worker = (number + self.start) % workers  # the loader asks number 0 first: it takes the next batch
        before = self.start // workers + (worker < self.start % workers)  # batches this worker gave
        samples = self._samples(worker, workers, skip=before * self.batch_size)
        ahead: deque[Sample | BadPicture] = deque()  # read already, but of a later batch
        while True:
            batch = [ahead.popleft() if ahead else next(samples) for _ in range(self.batch_size)]
            if all(isinstance(sample, BadPicture) for sample in batch):
                while not (ahead and isinstance(ahead[-1], Sample)) and len(ahead) < TRIES:
                    ahead.append(next(samples))
            yield self._batch(batch, ahead)

    def _batch(
        self, samples: list[Sample | BadPicture], ahead: Sequence[Sample | BadPicture]
    ) -> tuple[Tensor, Tensor, Tensor, list[tuple[str, str]]]:
        good = [sample for sample in samples if isinstance(sample, Sample)]
        bad = [(sample.name, sample.reason) for sample in samples if isinstance(sample, BadPicture)]
        instead, first = good, len(good)  # copies of a picture are numbered, so that each has draws of its own
        if not good:
            if not (ahead and isinstance(ahead[-1], Sample)):
                raise gone(*bad[-1])
            instead, first = [ahead[-1]], self.batch_size * len(ahead)
        items: list[Read] = []
        for place, sample in enumerate([*good, *instead * (len(bad) // len(instead) + 1)][: len(samples)]):
            word = key(
                self.seed, self.epoch, sample.key & (2**63 - 1), 0 if place < len(good) else first + place - len(good)
            )
            assert isinstance(word, int)
            items.append((self.framing(sample.picture, word), sample.label, word, []))
        pictures, labels, words, _ = _collate(items)
        return pictures, labels, words, bad

    def _samples(self, worker: int, workers: int, *, skip: int) -> Iterator[Sample | BadPicture]:
        """Yield a worker's samples, the part begun again in another order when it ends, without the first `skip`."""
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
