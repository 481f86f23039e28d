"""What a comparison of several arms means, corrected for how many there are."""

from collections.abc import Mapping
from dataclasses import dataclass

from .decision import Verdict, decide
from .exact import holm, holm_levels
from .paired import Difference


@dataclass(frozen=True)
class Judgement:
    """One arm among several that were compared with the same baseline.

    Args:
        difference: the comparison of this arm alone.
        p_holm: its p-value after Holm's correction for the number of arms.
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


def judge(results: Mapping[str, Difference], *, margin: float | None = None) -> dict[str, Judgement]:
    """Return the verdict on every arm, corrected for how many were tried.

    Args:
        results: arm's name to its difference from the baseline, all at one level.
        margin: a difference too small to matter; each result's own by default.
    """
    levels = {x.level for x in results.values()}
    if len(levels) != 1:
        raise ValueError(f"results at levels {sorted(levels)} were given; judge needs one arm at least and one level")
    level = levels.pop()
    p_values = [x.p_value for x in results.values()]
    corrected = zip(results.items(), holm(p_values), holm_levels(p_values, level=level), strict=True)
    judged = {}
    for (name, result), p, own_level in corrected:
        joint = result.interval(1 - (1 - level) / len(results))
        interval = result.interval(own_level)
        told = result.margin if margin is None else margin
        verdict = decide(result, margin=told, p_value=float(p), interval=interval, joint=joint, arms=len(results))
        judged[name] = Judgement(result, float(p), *interval, *joint, verdict)
    return judged
