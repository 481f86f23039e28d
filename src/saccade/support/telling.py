"""What long work says on its way, to whoever listens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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
