"""The decision on one arm, in plain words: it helps, it hurts, there is no difference, or nobody can tell yet."""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from .power import MOST_SEEDS, pictures_needed, seeds_needed
from .spread import Spread

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


class Decidable(Protocol):
    """What a decision needs of a difference."""

    @property
    def mean(self) -> float:
        """The difference seen."""

    @property
    def low(self) -> float:
        """Lower end of its interval."""

    @property
    def high(self) -> float:
        """Upper end of its interval."""

    @property
    def p_value(self) -> float:
        """Two-sided."""

    @property
    def detectable(self) -> float:
        """The smallest true difference that such an experiment finds."""

    @property
    def level(self) -> float:
        """Confidence of the interval."""

    @property
    def n_seeds(self) -> int:
        """Trainings of an arm."""

    @property
    def n_pictures(self) -> int:
        """Test pictures; 0 where only one number a seed is known."""

    @property
    def design(self) -> str:
        """Whether seeds are paired, unpaired or fixed."""

    @property
    def larger_is_better(self) -> bool:
        """Whether a higher score is the better one."""

    @property
    def share(self) -> bool:
        """Whether it is told in percentage points."""

    @property
    def unit(self) -> str:
        """That it is told in otherwise."""

    @property
    def spread(self) -> Spread:
        """Where the uncertainty comes from."""


def decide(
    result: Decidable,
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
    unit = f" {result.unit}" if result.unit and not result.share else ""
    numbers = f"{_signed(result, result.mean)} [{_signed(result, low)}, {_signed(result, high)}]{unit}"
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


def _undecided(result: Decidable, margin: float | None, level: float, numbers: str, about: str) -> Verdict:
    wanted = abs(result.mean) if margin is None else margin
    finds = f"finds {_size(result, result.detectable)} or more four times out of five"
    if result.share and result.detectable > 1:  # no two shares are farther apart than 1
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


def _size(result: Decidable, value: float) -> str:
    return f"{100 * value:.2f} points" if result.share else f"{value:.4g}{f' {result.unit}' if result.unit else ''}"


def _signed(result: Decidable, value: float) -> str:
    value = float(np.round(value, 12)) + 0.0  # no minus zero
    value = min(max(value, -1.0), 1.0) if result.share else value  # all that shares can differ by
    return f"{100 * value:+.2f}" if result.share else f"{value:+.4g}"
