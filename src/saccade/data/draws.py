"""Draws and orders that are functions of what they are for: no state, the same on every device, in every process.

A draw is named by integers (seed, epoch, sample, purpose). They are stirred into 32 bits by multiplications and
shifts, in 64-bit integers that never overflow, so that Python's integers, the CPU's and the GPU's tensors agree bit for
bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..settings.sizes import steps_of_epoch

Item = TypeVar("Item")
Key = Any  # int or Tensor: the same arithmetic serves both
MASK = 0xFFFFFFFF
ORDER = 0x0DE2  # keeps the draws of orders apart from others of the same seed and epoch


def stir(word: Key) -> Key:
    """Turn 32 bits into 32 others, one to one, every bit depending on every bit."""
    word = (word ^ (word >> 15)) * 0x2C1B3C6D & MASK
    word = (word ^ (word >> 12)) * 0x297A2D39 & MASK
    return word ^ (word >> 15)


def key(*parts: Key) -> Key:
    """Return 32 bits that stand for a sequence of non-negative integers; tensors among them are broadcast."""
    word: Key = 0x9E3779B9
    for part in parts:
        low, high = part & MASK, part >> 32
        word = stir((word ^ low) & MASK)
        word = stir((word + high + 0x7F4A7C15) & MASK)
    return word


def uniform(word: Key, purpose: Key) -> Any:
    """Return a number in [0, 1) for each key, float32 for tensors of them; another purpose gives another number."""
    return (key(word, purpose) >> 8) * 2.0**-24  # 24 bits are exact in float32


def generator(*parts: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator whose stream is a function of the integers."""
    return torch.Generator(device).manual_seed(seed_of(*parts))


def seed_of(*parts: int) -> int:
    """Return 62 bits for seeding what wants a seed."""
    return (key(*parts, 1) << 30) ^ key(*parts, 2)


@dataclass(frozen=True, kw_only=True)
class Order:
    """The batches of every epoch of a set.

    Each epoch is a new permutation. What does not fill a batch is left to other epochs, unless the whole set is smaller
    than a batch. Repeated images come as several copies in the same batch, each with a number of its own and none
    beside another, and an epoch stays as long as without.
    """

    length: int
    batch_size: int  # over all processes
    seed: int
    repeats: int = 1  # copies of an image in an epoch
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        """Refuse an empty set."""
        if self.length < 1:
            raise ValueError("the training set is empty; nothing can be learned from it")

    @property
    def steps(self) -> int:
        """Batches of an epoch."""
        return steps_of_epoch(self.length, self.batch_size)

    def epoch(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Return which image and which of its copies stands at each place of an epoch; both int64."""
        order = torch.randperm(self.length, generator=generator(self.seed, epoch, ORDER))
        used = min(self.steps * self.batch_size, self.length)
        batch, place = torch.arange(used).div(self.batch_size, rounding_mode="floor"), torch.arange(used)
        place = place % self.batch_size
        distinct = -(-min(self.batch_size, used) // self.repeats)  # images in a batch
        return order[batch * distinct + place % distinct], place // distinct

    def batches(self, *, start: int) -> Iterator[slice]:
        """Yield the places of an epoch that make up this process's part of each batch from `start` on."""
        used = min(self.steps * self.batch_size, self.length)
        for begin in range(start * self.batch_size, used, self.batch_size):
            mine = part(min(self.batch_size, used - begin), self.rank, self.world)
            yield slice(begin + mine.start, begin + mine.stop)


def part(length: int, index: int, count: int) -> slice:
    """Return the index-th of `count` parts of a range, as equal as whole pairs allow."""
    pairs = -(-length // 2)
    begin, end = index * pairs // count, (index + 1) * pairs // count
    return slice(min(2 * begin, length), min(2 * end, length))


def random_of(*parts: int) -> np.random.Generator:
    """Return the random numbers that belong to some whole numbers, such as seed, epoch and reader."""
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
    """Take a random item out of a list, filling its place with the last."""
    index = int(random.integers(len(held)))
    held[index], held[-1] = held[-1], held[index]
    return held.pop()
