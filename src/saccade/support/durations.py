"""Parse and format durations."""

import re

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class BudgetError(ValueError):
    """A duration is invalid, or too short to train anything."""


def parse_duration(text: str | float, name: str = "budget") -> float:
    """Parse "90s", "30m", "1h30m", "2.5h" or a number of seconds; `name` is used in errors."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        seconds = float(text)
    else:
        found = re.findall(r"(\d+(?:\.\d+)?)\s*([smhd])", str(text).lower())
        if not found or re.sub(r"(\d+(?:\.\d+)?)\s*[smhd]|\s", "", str(text).lower()):
            raise BudgetError(f"{name}={text!r} was given; write it as 90s, 30m, 2h or 1h30m")
        seconds = sum(float(number) * UNITS[unit] for number, unit in found)
    if not 0 < seconds < float("inf"):
        raise BudgetError(f"{name}={text!r} was given; give a finite duration above zero")
    return seconds


def say_duration(seconds: float) -> str:
    """Format seconds briefly."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
