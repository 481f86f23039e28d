"""What hands a training loop its batches: as little as possible from the host, the rest made on the device."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .augment import Augment
from .draws import key
from .order import Order

PICTURES = 0x91C7  # keeps the draws of pictures apart from others of the same seed and epoch


class Inputs(NamedTuple):
    """One process's part of a batch before augmentation, on the device."""

    what: Tensor  # the pictures, uint8 B, C, H, W, or their places in a resident set, int64 B
    labels: Tensor  # int64, B
    keys: Tensor  # int64, B: their draws


class Feed(ABC):
    """Training batches of a set, as functions of seed, epoch and step.

    Attributes:
        steps: batches of an epoch.
        bad: pictures that could not be read so far, name and reason.
        notes: what a user should know of how the pictures are read.
    """

    steps: int
    augment: Augment

    def __init__(self) -> None:
        self.bad: dict[str, str] = {}
        self.notes: list[str] = []

    @abstractmethod
    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[Inputs]:
        """Yield the inputs of an epoch's steps from `start` on."""

    def expand(self, inputs: Inputs, *, strong: bool) -> tuple[Tensor, Tensor]:
        """Return augmented images and targets; on the device, without waiting for it."""
        return self.augment(inputs.what, inputs.labels, inputs.keys, strong=strong)

    def close(self) -> None:  # noqa: B027, most feeds have nothing to stop
        """Stop what reads ahead."""


class ResidentFeed(Feed):
    """A set that lies on the device as a whole; a batch costs the host a few numbers.

    Args:
        pictures: uint8, N, C, H, W, on the device.
        labels: int64, N, on the device.
        order: of the batches.
        augment: makes images of them.
        rank: of this process.
        world: how many processes share a batch.
    """

    def __init__(
        self, pictures: Tensor, labels: Tensor, *, order: Order, augment: Augment, rank: int = 0, world: int = 1
    ) -> None:
        super().__init__()
        self.pictures, self.labels = pictures, labels
        self.order, self.augment = order, augment
        self.rank, self.world = rank, world
        self.steps = order.steps

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[Inputs]:
        """Yield places in the set and draws."""
        index, copies = self.order.epoch(epoch)
        keys = picture_keys(self.order.seed, epoch, index, copies)
        index = self._readable(index, keys)
        index, keys = index.to(self.pictures.device), keys.to(self.pictures.device)
        for places in self.order.batches(start=start, rank=self.rank, world=self.world):
            yield Inputs(index[places], self.labels[index[places]], keys[places])

    def _readable(self, index: Tensor, keys: Tensor) -> Tensor:  # noqa: ARG002
        """Return the places with others instead of those that hold no picture."""
        return index

    def expand(self, inputs: Inputs, *, strong: bool) -> tuple[Tensor, Tensor]:
        """Return augmented images and targets."""
        return super().expand(inputs._replace(what=self.pictures[inputs.what]), strong=strong)


def picture_keys(seed: int, epoch: int, index: Tensor, copies: Tensor) -> Tensor:
    """Return the keys of pictures' draws in an epoch, int64."""
    keys = key(seed, epoch, PICTURES, index, copies)
    assert isinstance(keys, Tensor)
    return keys


def to_device(array: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on the device, copied while the host goes on where that is possible."""
    if device.type == "cuda" and not array.is_cuda:
        return array.pin_memory().to(device, non_blocking=True)
    return array.to(device)
