"""Axes of a chart: ranges, ticks and their labels."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

TINY = 1e-9  # rounding tolerance, relative to a step


class Scale(NamedTuple):
    """Maps values from `low` to `high` onto coordinates from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value, clipped to the edges."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def span(values: Iterable[float], *, include: Sequence[float] = ()) -> tuple[float, float]:
    """Return a range of positive width with all finite values; 0 to 1 if there are none."""
    finite = [value for value in (*values, *include) if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    if high - low > TINY * max(abs(low), abs(high)):
        return low, high
    room = abs(low) / 2 or 0.5
    return low - room, high + room


def widen(low: float, high: float, *, most: int = 6) -> tuple[float, float]:
    """Widen a range to ticks."""
    step = _step(low, high, most)
    while True:
        ends = math.floor(low / step + TINY) * step, math.ceil(high / step - TINY) * step
        wider = _step(*ends, most)  # the wider range may need larger steps
        if wider <= step * (1 + TINY):
            return ends
        step = wider


def ticks(low: float, high: float, *, most: int = 6, whole: bool = False) -> list[float]:
    """Return at most `most` round values within a range; integers if `whole`, as for epochs."""
    step = _step(low, high, most)
    step = max(round(step), 1) if whole else step
    first, last = math.ceil(low / step - TINY), math.floor(high / step + TINY)
    return [number * step for number in range(first, last + 1)]


def tick_labels(values: Sequence[float], *, percent: bool = False) -> list[str]:
    """Format ticks with as many digits as needed to distinguish them."""
    if percent:
        return [f"{text}%" for text in tick_labels([100 * value for value in values])]
    size = max((abs(value) for value in values), default=0)
    if size and (size < 1e-3 or size >= 1e6):
        texts = [[_scientific(value, digits) for value in values] for digits in range(2, 12)]
        return [_minus(text) for text in next((few for few in texts if len(set(few)) == len(values)), texts[-1])]
    gaps = [b - a for a, b in pairwise(values)]
    step = min(gaps, default=abs(values[0]) if values else 1) or 1
    digits = next((d for d in range(9) if abs(round(step, d) - step) <= step * 1e-6), 9)
    return [_minus(f"{value:,.{digits}f}") for value in values]


def number(value: float, *, percent: bool = False) -> str:
    """Format a value: four digits, or percent with one decimal."""
    if not math.isfinite(value):
        return "not finite"
    if percent:
        return _minus(f"{value:.1%}")
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e6):
        return _minus(_scientific(value))
    return _minus(f"{value:.4g}")


def _step(low: float, high: float, most: int) -> float:
    raw = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - TINY))


def _scientific(value: float, digits: int = 2) -> str:
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}", 1) if text.startswith("-") else text
