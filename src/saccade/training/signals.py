"""Ctrl-C and SIGTERM as a wish to stop."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_signal(wish: Callable[[int], None]) -> Iterator[None]:
    """Tell of the first Ctrl-C or SIGTERM by calling `wish` with its number; a second one stops at once."""
    told, here = False, os.getpid()

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal told
        if os.getpid() != here:
            return  # processes that read have inherited this
        if told:
            raise KeyboardInterrupt
        told = True
        wish(number)

    kept = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            kept[number] = signal.signal(number, handle)
    except ValueError:
        pass  # only the main thread may; elsewhere the caller stops us
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
