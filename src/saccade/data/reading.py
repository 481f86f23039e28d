"""Reading with threads and worker processes, in order and with prefetching."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset

T = TypeVar("T")
U = TypeVar("U")
MANY, CHUNK = 1024, 64  # samples that repay starting processes, and chunk size
GRACE = 30  # seconds that a worker survives SIGTERM, while the main process saves


def in_threads(function: Callable[[T], U], items: Iterable[T], threads: int) -> Iterator[U]:
    """Map a function over items with threads, in order and with prefetching; decoding releases the GIL."""
    if threads < 2:
        yield from map(function, items)
        return
    rest = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        while ahead := list(islice(rest, 32 * threads)):
            yield from pool.map(function, ahead)


def read_all(function: Callable[[int], U], count: int, workers: int) -> Iterator[U]:
    """Map a function over 0, 1, ..., in order, with processes if there are many items.

    For small files Python takes as long as the decoder, so threads are limited by the GIL.
    """
    forks = sys.platform == "linux" and not multiprocessing.current_process().daemon
    if workers < 2 or count < MANY or not forks:
        yield from in_threads(function, range(count), workers)
        return
    ends = os.pipe()
    options: dict[str, Any] = {"batch_size": None, "collate_fn": _as_it_is, "multiprocessing_context": "fork"}
    options["worker_init_fn"] = partial(_init_reader, *ends)
    try:
        chunks = _Chunks(function, count)
        for chunk in make_loader(chunks, min(workers, len(chunks)), persistent=False, **options):
            yield from tree_map(lambda part: torch.from_numpy(part) if isinstance(part, np.ndarray) else part, chunk)
    finally:
        for end in ends:
            os.close(end)


class _Chunks(Dataset[list[Any]]):
    """A function's results for a chunk of numbers; tensors are sent as arrays, which need no file descriptors."""

    def __init__(self, function: Callable[[int], Any], count: int) -> None:
        self.function, self.count = function, count

    def __len__(self) -> int:
        return -(-self.count // CHUNK)

    def __getitem__(self, chunk: int) -> list[Any]:
        numbers = range(chunk * CHUNK, min((chunk + 1) * CHUNK, self.count))
        found = [self.function(number) for number in numbers]
        return list(tree_map(lambda part: part.numpy() if isinstance(part, Tensor) else part, found))


def _as_it_is(chunk: Any) -> Any:
    return chunk


def _init_reader(hears: int, speaks: int, number: int) -> None:
    """Prepare a worker that ends as soon as its parent does, which holds the other end of a pipe.

    Otherwise a worker blocked on its full queue would survive, and hold the run's lock.
    """
    init_worker(number)
    os.close(speaks)

    def wait() -> None:
        os.read(hears, 1)  # nothing is written: this returns when the other end is closed
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


class Loader(DataLoader[Any]):
    """A loader that starts its workers while no death of another worker can raise.

    PyTorch reports a dead worker by raising from the handler of SIGCHLD. Raised between `fork` and the release of
    logging's lock, which Python holds meanwhile, the error is swallowed, the lock stays held, and every other thread
    that logs hangs. A death in that moment is found at the next read instead.
    """

    def __iter__(self) -> Any:
        main = threading.current_thread() is threading.main_thread()  # handlers run there, and are set from there
        previous = signal.getsignal(signal.SIGCHLD) if main and sys.platform != "win32" else None
        if not self.num_workers or previous is None:
            return super().__iter__()
        forking = True

        def handler(number: int, frame: Any) -> None:  # PyTorch may keep it as the handler before its own
            if not forking and callable(previous):
                previous(number, frame)

        signal.signal(signal.SIGCHLD, handler)
        try:
            return super().__iter__()
        finally:
            forking = False
            if signal.getsignal(signal.SIGCHLD) is handler:
                signal.signal(signal.SIGCHLD, previous)


def make_loader(dataset: Any, workers: int, *, persistent: bool = True, **options: Any) -> Loader:
    """Return a loader; its workers use one thread each."""
    if workers:
        # Threads of the parent do not survive a fork, and workers do not need them.
        options = {"worker_init_fn": init_worker, **options, "persistent_workers": persistent, "prefetch_factor": 4}
    options.setdefault("collate_fn", dataset.collate if persistent else None)
    return Loader(dataset, num_workers=workers, **options)


def init_worker(_: int) -> None:
    """Prepare a worker: one thread, and time to deliver the last batch when the process group gets SIGTERM."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE))
