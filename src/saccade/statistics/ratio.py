"""Ratios of costs measured in rounds, such as seconds a step."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .inputs import check_level, read_series
from .spread import series_spread


@dataclass(frozen=True)
class Ratio:
    """The ratio b / a of two costs."""

    ratio: float  # the geometric mean of b / a; above 1 when b costs more
    low: float  # lower end of the interval
    high: float  # upper end of the interval
    p_value: float  # two-sided, that the ratio is 1; below 1 - level exactly when the interval excludes 1
    level: float  # confidence of the interval
    n_rounds: int  # how many pairs were measured


def ratio_interval(a: Any, b: Any, *, level: float = 0.95) -> Ratio:
    """Return b / a of noisy costs such as seconds a step, paired by round: a t interval of the log-ratio.

    Args:
        a: costs of the first, one a round, measured in turn with b so that both see the same machine.
        b: costs of the second, the same rounds.
        level: confidence of the interval.
    """
    check_level(level)
    first, second = read_series(a, b, what="rounds")
    if (least := min(first.min(), second.min())) <= 0:
        raise ValueError(f"costs as low as {least:g} were given; a ratio needs costs above zero. Measure longer")
    logs = np.log(second / first)
    spread = series_spread(logs)
    mean, half = float(logs.mean()), float(spread.half_width(level))
    low, high = np.exp(mean - half), np.exp(mean + half)
    return Ratio(float(np.exp(mean)), float(low), float(high), spread.p_value(mean), level, len(logs))
