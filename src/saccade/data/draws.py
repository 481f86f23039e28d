"""Stateless random numbers and sample orders: the same on every device and in every process.

A draw is identified by integers (seed, epoch, sample, purpose), which are hashed to 32 bits by multiplications and
shifts. These never overflow 64-bit integers, so that Python integers, CPU and GPU tensors give identical bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..settings.sizes import steps_of_epoch

Item = TypeVar("Item")
Key = Any  # int or Tensor
MASK = 0xFFFFFFFF
SHUFFLED = 0x7E87  # separates draws for the order of batches from that of samples
ORDER = 0x0DE2  # separates draws for orders from others of the same seed and epoch


def hash32(word: Key) -> Key:
    """Mix 32 bits by a bijective hash."""
    word = (word ^ (word >> 15)) * 0x2C1B3C6D & MASK
    word = (word ^ (word >> 12)) * 0x297A2D39 & MASK
    return word ^ (word >> 15)


def key(*parts: Key) -> Key:
    """Hash non-negative integers to 32 bits; tensors among them are broadcast."""
    word: Key = 0x9E3779B9
    for part in parts:
        low, high = part & MASK, part >> 32
        word = hash32((word ^ low) & MASK)
        word = hash32((word + high + 0x7F4A7C15) & MASK)
    return word


def uniform(word: Key, purpose: Key) -> Any:
    """Return a number in [0, 1) for each key and purpose; float32 for tensors."""
    return (key(word, purpose) >> 8) * 2.0**-24  # 24 bits are exact in float32


def generator(*parts: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator seeded by the integers."""
    return torch.Generator(device).manual_seed(derive_seed(*parts))


def derive_seed(*parts: int) -> int:
    """Derive a 62-bit seed from integers."""
    return (key(*parts, 1) << 30) ^ key(*parts, 2)


@dataclass(frozen=True, kw_only=True)
class Order:
    """Sample indices of every batch of every epoch.

    Each epoch is a new permutation. The incomplete last batch is dropped, unless the dataset is smaller than a batch.
    With repeated augmentation, the copies of an image are numbered, are in the same batch, never adjacent, and an
    epoch has as many steps as without.
    """

    length: int
    batch_size: int  # over all processes
    seed: int
    repeats: int = 1  # copies of an image in an epoch
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        """Refuse an empty dataset."""
        if self.length < 1:
            raise ValueError("the training set is empty; add training samples")

    @property
    def steps(self) -> int:
        """Number of batches in an epoch."""
        return steps_of_epoch(self.length, self.batch_size)

    def epoch(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Return the image and the number of its copy at each position of an epoch; both int64."""
        order = torch.randperm(self.length, generator=generator(self.seed, epoch, ORDER))
        used = min(self.steps * self.batch_size, self.length)
        batch, place = torch.arange(used).div(self.batch_size, rounding_mode="floor"), torch.arange(used)
        place = place % self.batch_size
        distinct = -(-min(self.batch_size, used) // self.repeats)  # images in a batch
        return order[batch * distinct + place % distinct], place // distinct

    def batches(self, *, start: int) -> Iterator[slice]:
        """Yield the positions of this process's part of each batch, from batch `start` on."""
        used = min(self.steps * self.batch_size, self.length)
        for begin in range(start * self.batch_size, used, self.batch_size):
            mine = part(min(self.batch_size, used - begin), self.rank, self.world)
            yield slice(begin + mine.start, begin + mine.stop)


@dataclass(frozen=True, kw_only=True)
class GroupOrder(Order):
    """Sample indices of every batch: samples of one group together, batches in random order.

    Dropped samples, the composition of batches, and their order are drawn anew each epoch. A batch between two groups
    has samples of both.
    """

    groups: Tensor = field(compare=False)  # such as the padded width of a text, N; near ones are alike

    def epoch(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Return the sample at each position of an epoch; there are no repeats."""
        order = torch.randperm(self.length, generator=generator(self.seed, epoch, ORDER))
        used = min(self.steps * self.batch_size, self.length)
        order = order[:used]
        order = order[self.groups[order].argsort(stable=True)]
        if used > self.batch_size:
            batches = order.view(-1, self.batch_size)
            order = batches[torch.randperm(len(batches), generator=generator(self.seed, epoch, SHUFFLED))].flatten()
        return order, torch.zeros_like(order)


def part(length: int, index: int, count: int) -> slice:
    """Return the index-th of `count` nearly equal slices of a range; pairs are never split."""
    pairs = -(-length // 2)
    begin, end = index * pairs // count, (index + 1) * pairs // count
    return slice(min(2 * begin, length), min(2 * end, length))


def random_of(*parts: int) -> np.random.Generator:
    """Return a NumPy generator seeded by integers such as seed, epoch and reader."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([part % 2**63 for part in parts])))


def shuffled(items: Iterator[Item], *, buffer: int, random: np.random.Generator) -> Iterator[Item]:
    """Yield items in random order, never holding more than `buffer` of them."""
    held: list[Item] = []
    for item in items:
        held.append(item)
        if len(held) >= buffer:
            yield _take(held, random)
    while held:
        yield _take(held, random)


def _take(held: list[Item], random: np.random.Generator) -> Item:
    """Remove a random item from a list; the last item fills its position."""
    index = int(random.integers(len(held)))
    held[index], held[-1] = held[-1], held[index]
    return held.pop()
