"""Batches of validation samples: in order, each sample once over all processes."""

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from .cache import Memory
from .feed import Batch
from .framing import Encoded, Encoder, Framing, ImageEncoder, at_once, resize_images
from .image import BadSample, Fault
from .reading import Loader, init_worker, read_all
from .source import Source

Read = tuple[list[Batch], list[tuple[str, Fault]]]  # batches, one for each shape of images, and bad samples


class Validation:
    """The validation samples of one process.

    Args:
        encode: encodes samples.
        framing: framing of the images, to resize those in memory if their side differs; None: read them like files.
        workers: reading processes; threads, for cached samples.
        keep: cache the encoded samples in memory.
        kept_on: device of the cached samples; default: CPU.
        memory: cache of samples read for earlier runs.
        rank: rank of this process, which takes every world-th sample.
        world: number of processes.
    """

    def __init__(
        self,
        source: Source,
        *,
        encode: Encoder,
        framing: Framing | None,
        batch_size: int,
        device: torch.device,
        workers: int = 0,
        keep: bool = False,
        kept_on: torch.device | None = None,
        memory: Memory | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.source, self.batch_size, self.device = source, batch_size, device
        self.places = torch.arange(rank, len(source), world)
        self.bad: dict[str, Fault] = {bad.name: bad.fault for bad in source.lost}
        self.keep, self.kept, self.threads = keep, list[Batch](), max(workers, 1)
        self.kept_on, self.memory = kept_on or torch.device("cpu"), Memory() if memory is None else memory
        self.encode, self.share = encode, (rank, world)
        array = source.array()
        self.columns: Batch | None = None
        made_grey = array is not None and framing is not None and framing.channels < array.shape[3]  # by the framing
        if array is not None and framing is not None and source.targets.in_rows and not made_grey:
            own = self.places.numpy()
            images = torch.from_numpy(array[own]).permute(0, 3, 1, 2).contiguous()
            targets = torch.from_numpy(source.targets.rows[own])
            self.columns = {"image": _resize(images, framing).to(device), "target": targets.to(device)}
        else:
            reading = _Reading(source, encode, self.places.tolist())
            self.loader = Loader(
                reading,
                batch_size=batch_size,
                num_workers=workers,
                collate_fn=reading.collate,
                persistent_workers=workers > 0,
                worker_init_fn=init_worker if workers else None,
            )

    def __len__(self) -> int:
        return len(self.places)

    def batches(self) -> Iterator[Batch]:
        """Yield batches on the device, with the samples' `place` in the source; bad ones are skipped and recorded."""
        if self.columns is not None:
            for begin in range(0, len(self.places), self.batch_size):
                part = slice(begin, begin + self.batch_size)
                yield {**{name: column[part] for name, column in self.columns.items()}, "place": self.places[part]}
            return
        self.ready()
        if self.keep:
            for batch in self.kept:
                yield _placed(batch, self.device)
            return
        for batches, bad in self.loader:
            self._note(bad)
            for batch in batches:
                yield _placed(batch, self.device)

    def ready(self) -> None:
        """Read the samples to cache, unless this was done."""
        if not self.keep or self.kept or self.columns is not None:
            return
        how = None
        if type(self.encode) is ImageEncoder:  # whose batches depend on nothing else
            how = (
                self.encode,
                self.source.at_least,
                self.source.fingerprint(),
                self.batch_size,
                self.share,
                self.kept_on,
            )
        found = None if how is None else self.memory.recall_batches(how)
        if found is None:
            found = list(self._read())
            if how is not None:
                self.memory.keep_batches(how, found)
        for batches, bad in found:
            self._note(bad)
            self.kept += batches

    def _read(self) -> Iterator[Read]:
        reading: Any = self.loader.dataset
        items = read_all(reading.__getitem__, len(reading), self.threads)
        while some := list(islice(items, self.batch_size)):
            batches, bad = reading.collate(some)
            yield [_placed(batch, self.kept_on) for batch in batches], bad

    def _note(self, bad: list[tuple[str, Fault]]) -> None:
        for name, fault in bad:
            if name not in self.bad:
                self.bad[name] = fault
                warnings.warn(f"{name} cannot be read and is not counted: {fault.reason}", stacklevel=3)

    def close(self) -> None:
        """Stop the workers; they are restarted when needed."""
        if self.columns is None:
            self.loader._iterator = None


def _placed(batch: Batch, device: torch.device) -> Batch:
    """Move a batch to a device, except `place`, which the host reads."""
    return {name: part if name == "place" else part.to(device) for name, part in batch.items()}


def _resize(images: Tensor, framing: Framing) -> Tensor:
    if framing.channels == 3 and images.shape[1] == 1:
        images = images.expand(-1, 3, -1, -1)
    return resize_images(images, (framing.img_size, framing.img_size))


class _Reading(Dataset[Any]):
    def __init__(self, source: Source, encode: Encoder, places: list[int]) -> None:
        self.source, self.encode, self.places = source, encode, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, item: int) -> tuple[Encoded | None, int, tuple[str, Fault] | None]:
        place = self.places[item]
        try:
            return self.encode(self.source.sample(place)), place, None
        except BadSample as error:
            return None, place, (error.name, error.fault)

    def collate(self, items: list[Any]) -> Read:
        """Return a batch for each shape of images, or several if they are large."""
        shapes: dict[Any, list[tuple[Encoded, int]]] = {}
        for sample, place, _ in items:
            if sample is not None:
                shapes.setdefault(sample["image"].shape if "image" in sample else None, []).append((sample, place))
        batches = []
        for shape, good in shapes.items():
            step = len(good) if shape is None else at_once(shape)
            for begin in range(0, len(good), step):
                samples, places = zip(*good[begin : begin + step], strict=True)
                batches.append({**self.encode.collate(list(samples)), "place": torch.tensor(places)})
        return batches, [named for _, _, named in items if named is not None]
