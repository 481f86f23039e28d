"""Reading in several threads: decoding and resizing let other threads run."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def in_threads(function: Callable[[T], U], items: Iterable[T], threads: int) -> Iterator[U]:
    """Yield what a function returns for each item, in order, no more than some items ahead."""
    if threads < 2:
        yield from map(function, items)
        return
    rest = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        while some := list(islice(rest, 32 * threads)):
            yield from pool.map(function, some)
