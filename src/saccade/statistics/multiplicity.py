"""Verdicts on several arms and after several looks: Holm's correction and alpha spending."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .difference import Difference, Verdict, decide

FIRST_LOOK = 0.8  # share of the chance of a false alarm that the first look may spend


@dataclass(frozen=True)
class Judgement:
    """One arm among several that were compared with the same baseline.

    Args:
        difference: the comparison of this arm alone.
        p_holm: its p-value after Holm's correction for the number of arms, and that for looks.
        low: lower end of the interval that excludes zero exactly when `p_holm` is below 1 - level.
        high: its upper end.
        joint_low: lower end of the Bonferroni interval; all arms' joint intervals hold together with the level.
        joint_high: its upper end.
        verdict: the decision, by `p_holm`; "no difference" by the joint interval.
    """

    difference: Difference
    p_holm: float
    low: float
    high: float
    joint_low: float
    joint_high: float
    verdict: Verdict


def alpha_share(look: int) -> float:
    """Return the share of alpha that a look, from 1 on, may spend; 0 is the only look ever."""
    return 1.0 if look == 0 else FIRST_LOOK if look == 1 else (1 - FIRST_LOOK) / (look * (look - 1))


def judge(results: Mapping[str, Difference], *, margin: float | None = None, look: int = 0) -> dict[str, Judgement]:
    """Return the verdict on every arm, corrected for the number of arms and looks.

    Args:
        results: arm's name to its difference from the baseline, all at one level.
        margin: a difference too small to matter; each result's own by default.
        look: how many times these arms were looked at, this time included, with seeds added in between; 0 where no
            seeds will ever be added.
    """
    levels = {x.level for x in results.values()}
    if len(levels) != 1:
        raise ValueError(
            f"results at levels {sorted(levels)} were given; judge needs at least one arm, and one level for all"
        )
    level = levels.pop()
    alpha, p_values = (1 - level) * alpha_share(look), [x.p_value for x in results.values()]
    after = 1 - (1 - level) * alpha_share(look + 1 if look else 0) / len(results)
    corrected = zip(results.items(), holm(p_values), holm_levels(p_values, level=1 - alpha), strict=True)
    judged = {}
    for (name, result), p, own_level in corrected:
        p = min(float(p) / alpha_share(look), 1.0)
        joint, interval = result.interval(1 - alpha / len(results)), result.interval(own_level)
        own = result.margin if margin is None else margin
        verdict = decide(result, margin=own, p_value=p, interval=interval, joint=joint, level=after)
        judged[name] = Judgement(result, p, *interval, *joint, verdict)
    return judged


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return Holm's adjusted p-values, in the order given: the chance of any false alarm stays at the level used."""
    p = np.asarray(p_values, dtype=float)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p-values {p_values!r} were given; give a flat list of numbers from 0 to 1, one per arm")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted


def holm_levels(p_values: Sequence[float] | np.ndarray, *, level: float = 0.95) -> np.ndarray:
    """Return the level for each arm's interval at which it excludes zero exactly when Holm's procedure rejects."""
    p = np.asarray(p_values, dtype=float)
    alpha, allowed = 1 - level, np.empty_like(p)
    still_rejecting, divisor = True, len(p)
    for rank, index in enumerate(np.argsort(p, kind="stable")):
        if still_rejecting:
            divisor = len(p) - rank
            still_rejecting = bool(p[index] < alpha / divisor)
        allowed[index] = alpha / divisor
    return 1 - allowed
