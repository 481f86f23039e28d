"""Feeds give the training loop its batches; augmentation runs on the device."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from .draws import Order, key
from .image import Fault

SAMPLES = 0x91C7  # separates draws for samples from others of the same seed and epoch

Batch = dict[str, Tensor]  # tensors by name, samples on the first axis


class Expand(Protocol):
    """Turns a batch as read into a training batch: augmentation, for images."""

    def __call__(self, batch: Batch, *, strong: bool) -> Batch:
        """Return the augmented batch."""

    def plain(self, batch: Batch) -> Batch:
        """Return the batch for validation, without randomness."""

    def after_framing(self) -> Any:
        """Return the expansion for samples that were cropped at random when they were read."""


class Feed(ABC):
    """Training batches of a dataset, as functions of seed, epoch and step.

    Attributes:
        steps: batches of an epoch.
        names: keys of a batch as read; known after the first batch.
        order: order of the samples; None for a stream, whose readers determine it.
        expand: turns a batch as read into a training batch, on the device and without synchronisation.
        bad: unreadable samples so far, by name.
        notes: remarks for the log on how samples are read.
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
        """Yield the batches of an epoch from step `start` on, with the random `key` of every sample."""

    def expand(self, batch: Batch, *, strong: bool) -> Batch:
        """Return the training batch, computed on the device without synchronisation."""
        return self.expanding(batch, strong=strong)

    def _named(self, batch: Batch) -> Batch:
        """Record the batch's keys, which are the same for every batch of a feed."""
        self.names = tuple(batch)
        return batch

    def close(self) -> None:  # noqa: B027, most feeds have nothing to stop
        """Stop prefetching."""


class ResidentFeed(Feed):
    """A dataset that is on the device as a whole, N, ... by name; the host only sends indices."""

    order: Order

    def __init__(self, columns: Mapping[str, Tensor], *, order: Order, expand: Expand) -> None:
        super().__init__(expand)
        self.columns, self.order, self.steps = dict(columns), order, order.steps

    @property
    def device(self) -> torch.device:
        """The device that holds the dataset."""
        return next(iter(self.columns.values())).device

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """Yield indices and random keys."""
        index, copies = self.order.epoch(epoch)
        keys = sample_keys(self.order.seed, epoch, index, copies)
        index = self._readable(index, keys)
        index, keys = index.to(self.device), keys.to(self.device)
        for places in self.order.batches(start=start):
            yield self._named({"index": index[places], "key": keys[places]})

    def _readable(self, index: Tensor, keys: Tensor) -> Tensor:  # noqa: ARG002
        """Replace the indices of unreadable samples."""
        return index

    def expand(self, batch: Batch, *, strong: bool) -> Batch:
        """Return the training batch."""
        samples = {name: column[batch["index"]] for name, column in self.columns.items()}
        return super().expand({**samples, "key": batch["key"]}, strong=strong)


def sample_keys(seed: int, epoch: int, index: Tensor, copies: Tensor) -> Tensor:
    """Return the random keys of samples in an epoch, int64."""
    return key(seed, epoch, SAMPLES, index, copies)


def to_device(array: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on the device, copied asynchronously where possible."""
    if device.type == "cuda" and not array.is_cuda:
        return array.pin_memory().to(device, non_blocking=True)
    return array.to(device)


def batch_length(batch: Mapping[str, Tensor]) -> int:
    """Return the number of samples of a batch."""
    return len(next(iter(batch.values())))


def slice_batch(batch: Mapping[str, Tensor], part: slice) -> Batch:
    """Return a slice of a batch's samples."""
    return {name: value[part] for name, value in batch.items()}
