"""Which pictures make up which batch: a function of seed, epoch and step alone."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .draws import generator

ORDER = 0x0DE2  # keeps these draws apart from others of the same seed and epoch


@dataclass(frozen=True, kw_only=True)
class Order:
    """The batches of every epoch of a set.

    Each epoch is a new permutation. What does not fill a batch is left to other epochs, unless the whole set is smaller
    than a batch. Repeated pictures come as several copies in the same batch, each with a number of its own and none
    beside another, and an epoch stays as long as without.

    Args:
        length: pictures in the set.
        batch_size: over all processes.
        seed: of the run.
        repeats: copies of a picture in an epoch.
    """

    length: int
    batch_size: int
    seed: int
    repeats: int = 1

    def __post_init__(self) -> None:
        """Refuse an empty set."""
        if self.length < 1:
            raise ValueError("the training set is empty; nothing can be learned from it")

    @property
    def steps(self) -> int:
        """Batches of an epoch."""
        return max(self.length // self.batch_size, 1)

    def epoch(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Return which picture and which of its copies stands at each place of an epoch; both int64."""
        order = torch.randperm(self.length, generator=generator(self.seed, epoch, ORDER))
        used = min(self.steps * self.batch_size, self.length)
        batch, place = torch.arange(used).div(self.batch_size, rounding_mode="floor"), torch.arange(used)
        place = place % self.batch_size
        distinct = -(-min(self.batch_size, used) // self.repeats)  # pictures in a batch
        return order[batch * distinct + place % distinct], place // distinct

    def batches(self, *, start: int, rank: int, world: int) -> Iterator[slice]:
        """Yield the places of an epoch that make up one process's part of each batch.

        Args:
            start: the first batch.
            rank: of the process.
            world: how many processes share a batch.
        """
        used = min(self.steps * self.batch_size, self.length)
        for begin in range(start * self.batch_size, used, self.batch_size):
            mine = part(min(self.batch_size, used - begin), rank, world)
            yield slice(begin + mine.start, begin + mine.stop)


def part(length: int, index: int, count: int) -> slice:
    """Return the index-th of `count` parts of a range, as equal as whole pairs allow."""
    pairs = -(-length // 2)
    begin, end = index * pairs // count, (index + 1) * pairs // count
    return slice(min(2 * begin, length), min(2 * end, length))
