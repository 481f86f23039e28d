"""What a comparison means, in plain words, for one arm or for several at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from .exact import holm, holm_levels
from .power import MOST_SEEDS, pictures_needed, seeds_needed

if TYPE_CHECKING:
    from .paired import Difference

MANY_SEEDS = 100  # nobody runs more to confirm what was seen


@dataclass(frozen=True)
class Verdict:
    """A decision and its reasons.

    Args:
        kind: "helps", "hurts", "no difference" or "cannot tell".
        text: a sentence with the numbers.
        more_seeds: how many seeds to add to each arm before asking again; None where that would not help.
    """

    kind: Literal["helps", "hurts", "no difference", "cannot tell"]
    text: str
    more_seeds: int | None = None

    def __str__(self) -> str:
        return self.text


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

    difference: "Difference"
    p_holm: float
    low: float
    high: float
    joint_low: float
    joint_high: float
    verdict: Verdict


def judge(results: Mapping[str, "Difference"], *, margin: float | None = None) -> dict[str, Judgement]:
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


def decide(
    result: "Difference",
    *,
    margin: float | None = None,
    p_value: float | None = None,
    interval: tuple[float, float] | None = None,
    joint: tuple[float, float] | None = None,
    arms: int = 1,
) -> Verdict:
    """Return the verdict on one arm.

    Args:
        result: the comparison.
        margin: a difference too small to matter; without it nothing is called "no difference".
        p_value: a corrected one instead of the result's.
        interval: a corrected one instead of the result's.
        joint: the interval that has to lie within the margin; the result's by default.
        arms: how many arms share the chance of a false alarm, for how many seeds are needed.
    """
    p = result.p_value if p_value is None else p_value
    low, high = (result.low, result.high) if interval is None else interval
    least, most = (result.low, result.high) if joint is None else joint
    numbers = f"{_signed(result, result.mean)} [{_signed(result, low)}, {_signed(result, high)}]"
    about = "" if result.design != "fixed" else "; said of these trained weights only, not of other trainings"
    if result.spread.certain and result.mean == 0:
        return Verdict("no difference", f"no difference at all: both arms score the same everywhere{about}")
    within = margin is not None and -margin < least and most < margin
    if p < 1 - result.level:
        kind: Literal["helps", "hurts"] = "helps" if (result.mean > 0) == result.larger_is_better else "hurts"
        small = f", by less than {_size(result, margin or 0)}" if within else ""
        return Verdict(kind, f"{kind}{small}: {numbers}, p = {p:.2g}{about}")
    if within:
        return Verdict("no difference", f"no difference above {_size(result, margin or 0)}: {numbers}{about}")
    return _undecided(result, margin, 1 - (1 - result.level) / arms, numbers, about)


def _undecided(result: "Difference", margin: float | None, level: float, numbers: str, about: str) -> Verdict:
    wanted = abs(result.mean) if margin is None else margin
    finds = f"finds {_size(result, result.detectable)} or more four times out of five"
    if result.right_or_wrong and result.detectable > 1:  # no two accuracies are farther apart than 1
        finds = "is too small to find any difference that there can be"
    opening = f"cannot tell yet: {numbers}; this experiment {finds}"
    if result.design == "fixed" or wanted == 0:
        advice = "compare several seeds" if result.design == "fixed" else "tell a margin, the difference that matters"
        return Verdict("cannot tell", f"{opening}; {advice}{about}")
    target = _size(result, wanted) + ("" if margin is not None else ", the difference seen")
    needed = seeds_needed(result, wanted, level=level)
    if needed is None and result.n_pictures == 0:
        return Verdict("cannot tell", f"{opening}; to find {target}, more than {MOST_SEEDS:,} seeds would be needed")
    if needed is None:
        pictures = pictures_needed(result, wanted, pictures=result.n_pictures, level=level)
        return Verdict(
            "cannot tell", f"{opening}; more seeds will not find {target}: test on {pictures:,} pictures{about}"
        )
    more = max(needed - result.n_seeds, 1)
    if out_of_reach(more, margin):
        text = f"{opening}; {target}, would take {more:,} more seeds: tell a margin, the difference that matters"
        return Verdict("cannot tell", f"{text}{about}", more)
    text = f"{opening}; run {more} more seed{'s' if more > 1 else ''} of each arm to find {target}{about}"
    return Verdict("cannot tell", text, more)


def out_of_reach(more: int, margin: float | None) -> bool:
    """Say whether nobody would run so many more seeds to confirm the difference seen; a margin was asked for."""
    return margin is None and more > MANY_SEEDS


def _size(result: "Difference", value: float) -> str:
    return f"{100 * value:.2f} points" if result.right_or_wrong else f"{value:.4g}"


def _signed(result: "Difference", value: float) -> str:
    value = float(np.round(value, 12)) + 0.0  # no minus zero
    value = min(max(value, -1.0), 1.0) if result.right_or_wrong else value  # all that accuracies can differ by
    return f"{100 * value:+.2f}" if result.right_or_wrong else f"{value:+.4g}"
