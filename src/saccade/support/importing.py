"""Imports of a command, which are most of the time until it has done anything."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Keep the collector of reference cycles off while modules are imported: it would go through all that they define
    again and again, a seventh of the time, and nothing of it is ever freed."""
    if "torch" in sys.modules or not gc.isenabled():  # what takes long is there, or the user says when to collect
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
