"""Worker processes are started safely."""

import logging
import os
import signal
import threading

import pytest

from saccade.data.reading import make_loader

dies = [False]  # whether a worker's death is reported while another one is forked


def _die() -> None:
    if dies[0]:
        os.kill(os.getpid(), signal.SIGCHLD)


os.register_at_fork(before=_die)


class Numbers:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index

    def collate(self, items):
        return items


@pytest.fixture
def raising():
    """Install a handler that raises while `dies` is set, as PyTorch's does for a dead worker."""
    calls = []

    def handler(*_):
        if dies[0]:
            calls.append(1)
            raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")

    previous = signal.signal(signal.SIGCHLD, handler)
    yield calls
    dies[0] = False
    signal.signal(signal.SIGCHLD, previous)


def lock_is_free():
    found = []

    def try_it():
        found.append(logging._lock.acquire(timeout=2))
        if found[0]:
            logging._lock.release()

    thread = threading.Thread(target=try_it, daemon=True)
    thread.start()
    thread.join()
    return found == [True]


def test_a_worker_that_dies_while_others_are_started_raises_nothing_then(raising):
    dies[0] = True
    batches = iter(make_loader(Numbers(), 2, persistent=True))
    dies[0] = False
    assert raising == []
    assert lock_is_free()
    assert [next(batches), next(batches)] == [[0], [1]]


def test_a_worker_that_dies_later_raises_as_before(raising):
    batches = iter(make_loader(Numbers(), 1, persistent=True))
    dies[0] = True
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        os.kill(os.getpid(), signal.SIGCHLD)
    dies[0] = False
    assert next(batches) == [0]
