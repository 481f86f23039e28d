"""What hands a training loop its batches: as little as possible from the host, the rest made on the device."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from .draws import Order, key
from .image import Fault

SAMPLES = 0x91C7  # keeps the draws of samples apart from others of the same seed and epoch

Batch = dict[str, Tensor]  # one process's part of a batch on the device, by name; samples on the first axis of each


class Expand(Protocol):
    """What makes a training batch of one as it was read: augmentation, for images."""

    def __call__(self, batch: Batch, *, strong: bool) -> Batch:
        """Return the batch that is trained on."""

    def plain(self, batch: Batch) -> Batch:
        """Return the batch as a model is asked about it, nothing left to chance."""

    def after_framing(self) -> Any:
        """Return the same for samples whose random crop was done when they were read."""


class Feed(ABC):
    """Training batches of a set, as functions of seed, epoch and step.

    Attributes:
        steps: batches of an epoch.
        names: of what a batch holds as it was read, in its order; known once a batch was.
        order: of the samples; None for a stream, whose readers make it.
        expand: makes of a batch as it was read what is trained on; on the device, without waiting for it.
        bad: samples that could not be read so far, by name.
        notes: what a user should know of how the samples are read.
    """

    steps: int
    names: tuple[str, ...] = ()
    order: Order | None = None

    def __init__(self, expand: Expand) -> None:
        self.expanding = expand
        self.bad: dict[str, Fault] = {}
        self.notes: list[str] = []

    @abstractmethod
    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch's steps from `start` on: of every sample its `key` and its parts."""

    def expand(self, batch: Batch, *, strong: bool) -> Batch:
        """Return what is trained on; on the device, without waiting for it."""
        return self.expanding(batch, strong=strong)

    def _named(self, batch: Batch) -> Batch:
        """Take note of what a batch holds; every one of a feed holds the same."""
        self.names = tuple(batch)
        return batch

    def close(self) -> None:  # noqa: B027, most feeds have nothing to stop
        """Stop what reads ahead."""


class ResidentFeed(Feed):
    """A set that lies on the device as a whole, N, ... by name; a batch costs the host a few numbers."""

    order: Order

    def __init__(self, columns: Mapping[str, Tensor], *, order: Order, expand: Expand) -> None:
        super().__init__(expand)
        self.columns, self.order, self.steps = dict(columns), order, order.steps

    @property
    def device(self) -> torch.device:
        """Where the set lies."""
        return next(iter(self.columns.values())).device

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """Yield places in the set and draws."""
        index, copies = self.order.epoch(epoch)
        keys = sample_keys(self.order.seed, epoch, index, copies)
        index = self._readable(index, keys)
        index, keys = index.to(self.device), keys.to(self.device)
        for places in self.order.batches(start=start):
            yield self._named({"index": index[places], "key": keys[places]})

    def _readable(self, index: Tensor, keys: Tensor) -> Tensor:  # noqa: ARG002
        """Return the places with others instead of those that hold no sample."""
        return index

    def expand(self, batch: Batch, *, strong: bool) -> Batch:
        """Return what is trained on."""
        samples = {name: column[batch["index"]] for name, column in self.columns.items()}
        return super().expand({**samples, "key": batch["key"]}, strong=strong)


def sample_keys(seed: int, epoch: int, index: Tensor, copies: Tensor) -> Tensor:
    """Return the keys of samples' draws in an epoch, int64."""
    return key(seed, epoch, SAMPLES, index, copies)


def to_device(array: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on the device, copied while the host goes on where that is possible."""
    if device.type == "cuda" and not array.is_cuda:
        return array.pin_memory().to(device, non_blocking=True)
    return array.to(device)


def samples_in(batch: Mapping[str, Tensor]) -> int:
    """Return how many samples a batch has."""
    return len(next(iter(batch.values())))


def part_of(batch: Mapping[str, Tensor], part: slice) -> Batch:
    """Return some of a batch's samples."""
    return {name: value[part] for name, value in batch.items()}
