"""What long work says on its way, to whoever listens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

LARGE = 30 * 2**20  # bytes of a file that takes seconds to read
_SAY: ContextVar[Callable[[str], None] | None] = ContextVar("say", default=None)


@contextmanager
def saying(say: Callable[[str], None]) -> Iterator[None]:
    """Listen to what is told within a context."""
    token = _SAY.set(say)
    try:
        yield
    finally:
        _SAY.reset(token)


def tell(text: str) -> None:
    """Say something, if anyone listens."""
    say = _SAY.get()
    if say is not None:
        say(text)


def tell_large(path: Path) -> None:
    """Name a file that is about to be read, if that will take seconds."""
    size = path.stat().st_size
    if size > LARGE:
        tell(f"reading {path.name}, {size / 2**20:.0f} MiB ...")
