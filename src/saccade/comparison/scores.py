"""Comparisons of one number a run: scores that no single picture has, and costs."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .exact import sign_flip
from .inputs import check_level, read_series
from .paired import Difference, summarize
from .spread import Spread


def paired_scores(
    a: Any,
    b: Any,
    *,
    level: float = 0.95,
    larger_is_better: bool = True,
    margin: float | None = None,
    share: bool = False,
    unit: str = "",
) -> Difference:
    """Return b - a for one number a seed, such as mIoU, AP or ECE: a t interval over seeds.

    Only trainings are a sample here: the interval speaks about other seeds on this very test set.

    Args:
        a: scores of the first arm, S.
        b: scores of the second arm, the same seeds.
        level: confidence of the interval.
        larger_is_better: False for errors such as ECE.
        margin: a difference too small to matter.
        share: whether differences are told in percentage points.
        unit: that other differences are told in.
    """
    first, second = read_series(a, b)
    differences = second - first
    variance = _variance_of_mean(differences)
    return summarize(
        float(differences.mean()),
        Spread(variance, len(differences) - 1, 0.0, np.inf, 0.0),
        level=level,
        n_seeds=len(differences),
        n_pictures=0,
        per_seed=differences,
        sign_flip_p=sign_flip(differences),
        mcnemar_p=None,
        mcnemar_per_seed=np.empty(0),
        design="paired",
        larger_is_better=larger_is_better,
        right_or_wrong=False,
        margin=margin,
        share=share,
        unit=unit,
    )


@dataclass(frozen=True)
class Ratio:
    """How many times the first's cost the second costs, b / a.

    Args:
        ratio: the geometric mean of b / a; above 1 when b costs more.
        low: lower end of the interval.
        high: upper end of the interval.
        p_value: two-sided, that the ratio is 1; below 1 - level exactly when the interval excludes 1.
        level: confidence of the interval.
        n_rounds: how many pairs were measured.
    """

    ratio: float
    low: float
    high: float
    p_value: float
    level: float
    n_rounds: int


def ratio_interval(a: Any, b: Any, *, level: float = 0.95) -> Ratio:
    """Return b / a of noisy costs such as seconds a step, paired by round: a t interval of the log-ratio.

    Args:
        a: costs of the first, one a round, measured in turn with b so that both see the same machine.
        b: costs of the second, the same rounds.
        level: confidence of the interval.
    """
    check_level(level)
    first, second = read_series(a, b, what="rounds")
    if min(first.min(), second.min()) <= 0:
        raise ValueError(
            f"costs down to {min(first.min(), second.min()):g} were given; a ratio needs costs above zero. "
            "Measure longer"
        )
    logs = np.log(second / first)
    spread = Spread(_variance_of_mean(logs), len(logs) - 1, 0.0, np.inf, 0.0)
    mean, half = float(logs.mean()), float(spread.half_width(level))
    low, high = np.exp(mean - half), np.exp(mean + half)
    return Ratio(float(np.exp(mean)), float(low), float(high), spread.p_value(mean), level, len(logs))


def _variance_of_mean(values: np.ndarray) -> float:
    variance = float(values.var(ddof=1)) / len(values)
    return variance if variance > 1e-26 * float(np.square(values).mean()) else 0.0  # rounding of equal values
