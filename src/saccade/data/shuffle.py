"""Shuffle a stream inside a buffer, as a function of a few numbers."""

from collections.abc import Iterator
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")


def random_of(*words: int) -> np.random.Generator:
    """Return the random numbers that belong to some whole numbers, such as seed, epoch and reader."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([word % 2**63 for word in words])))


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
