"""Times as people write them, and when the time of a command began."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


_begun: list[float] = []  # commands under way, the innermost last


@contextmanager
def counted() -> Iterator[None]:
    """Count the time of a command from here on: what it imports before it knows its budget is part of it."""
    _begun.append(monotonic())
    try:
        yield
    finally:
        _begun.pop()


def time_begun() -> float:
    """Return when the time of what is done now began, on the monotonic clock: its command, or now without one."""
    return _begun[-1] if _begun else monotonic()


class BudgetError(ValueError):
    """A time that cannot be read, or in which nothing can be trained."""


def parse_duration(text: str | float, name: str = "budget") -> float:
    """Return seconds from "90s", "30m", "1h30m", "2.5h" or a number of seconds; errors call it by its name."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        seconds = float(text)
    else:
        found = re.findall(r"(\d+(?:\.\d+)?)\s*([smhd])", str(text).lower())
        if not found or re.sub(r"(\d+(?:\.\d+)?)\s*[smhd]|\s", "", str(text).lower()):
            raise BudgetError(f"{name}={text!r} was given; write it as 90s, 30m, 2h or 1h30m")
        seconds = sum(float(number) * UNITS[unit] for number, unit in found)
    if not 0 < seconds < float("inf"):
        raise BudgetError(f"{name}={text!r} was given; nothing can be trained in no time, or in one without an end")
    return seconds


def say_duration(seconds: float) -> str:
    """Return seconds in words that are short."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
