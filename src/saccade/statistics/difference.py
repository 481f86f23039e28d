"""Differences between two arms, and verdicts."""

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from .inputs import check_level
from .planning import MOST_SEEDS, out_of_reach, samples_needed, seeds_needed
from .spread import Spread

MATTERS = 0.01  # a difference that may be hidden where arms score the same everywhere and no margin was given

Kind = Literal["helps", "hurts", "no difference", "cannot tell", "unstable", "never applied"]


@dataclass(frozen=True)
class Verdict:
    """A decision and its reasons.

    Args:
        kind: "helps", "hurts", "no difference", "cannot tell", "unstable" where failed trainings could turn it, or
            "never applied" where what was to be tried had no effect on a single training.
        text: a sentence with the numbers.
        more_seeds: how many seeds to add to each arm before asking again; None where that would not help.
    """

    kind: Kind
    text: str
    more_seeds: int | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference b - a of the second arm from the first, with its uncertainty.

    Args:
        mean: mean(b) - mean(a); positive when b scores more.
        low: lower end of the interval.
        high: upper end of the interval.
        p_value: two-sided; below 1 - level exactly when the interval excludes zero.
        detectable: estimate of the smallest true difference that such an experiment finds four times out of five.
        level: confidence of the interval.
        n_seeds: seeds of an arm, of the smaller arm if they differ.
        n_samples: samples of the test set; 0 where only one number a seed is known.
        per_seed: b - a of each seed, S; empty when seeds are not paired.
        seed_se: standard error of the mean that seeds cause.
        sample_se: standard error of the mean that the choice of samples causes beyond that.
        sign_flip_p: exact p-value over seeds, samples as they are; None without paired seeds.
        mcnemar_p: exact p-value over samples, seeds as they are; None without samples.
        mcnemar_per_seed: the same for each seed alone, S; empty when seeds are not paired.
        design: "paired", "unpaired" or "fixed" (these very seeds only).
        larger_is_better: whether a higher score is the better one.
        right_or_wrong: whether all scores were 0 or 1.
        margin: a difference too small to matter, if one was given.
        spread: where the uncertainty comes from.
        share: whether scores are shares of one, so that differences are in percentage points.
        unit: of other scores; empty for none.
        samples_fixed: whether the interval takes the samples as they are: only one number a seed is known.
    """

    mean: float
    low: float
    high: float
    p_value: float
    detectable: float
    level: float
    n_seeds: int
    n_samples: int
    per_seed: np.ndarray = field(repr=False)
    seed_se: float
    sample_se: float
    sign_flip_p: float | None
    mcnemar_p: float | None = None
    mcnemar_per_seed: np.ndarray = field(repr=False, default_factory=lambda: np.empty(0))
    design: Literal["paired", "unpaired", "fixed"] = "paired"
    larger_is_better: bool = True
    right_or_wrong: bool = False
    margin: float | None
    spread: Spread = field(repr=False)
    share: bool = False
    unit: str = ""
    samples_fixed: bool = False

    def interval(self, level: float) -> tuple[float, float]:
        """Return the interval at another level."""
        check_level(level)
        half = float(self.spread.half_width(level))
        return self.mean - half, self.mean + half

    def power(self, difference: float) -> float:
        """Return the power of such an experiment for a true difference of this size."""
        return self.spread.power(difference, level=self.level)

    def seeds_needed(self, difference: float, *, power: float = 0.8, level: float | None = None) -> int | None:
        """Return the total number of seeds per arm to detect a true difference of this size on the same samples.

        Args:
            difference: the size that matters; its sign does not.
            power: the wanted chance of finding it.
            level: confidence of the interval; the result's by default.

        Returns:
            The number, 2 at least, or None when no number of seeds is enough because the samples are too few.
        """
        level = self.level if level is None else level
        return seeds_needed(self.spread, difference, now=self.n_seeds, level=level, power=power)

    def samples_needed(self, difference: float, *, level: float) -> int:
        """Return the approximate number of samples to detect a difference of this size, with a twofold reserve."""
        return samples_needed(self.spread, difference, seeds=self.n_seeds, samples=self.n_samples, level=level)

    @property
    def verdict(self) -> Verdict:
        """The verdict as text; for several arms use `judge`, which corrects for multiplicity."""
        return decide(self, margin=self.margin)

    def __str__(self) -> str:
        return str(self.verdict)

    # For people: the one place that knows how a difference is written.

    @property
    def unit_name(self) -> str:
        """The displayed unit: points for fractions; empty for none."""
        return "points" if self.share else self.unit

    @property
    def finds_nothing(self) -> bool:
        """Whether the smallest detectable difference is larger than any possible one."""
        return self.share and self.detectable > 1

    def scaled(self, value: float) -> float:
        """Return a difference in the displayed unit; fractions differ by at most 100 points."""
        if not self.share:
            return float(np.round(value, 12)) + 0.0  # + 0.0: no minus zero
        return min(max(round(100 * value, 2) + 0.0, -100.0), 100.0)

    def size(self, value: float) -> str:
        """Format the magnitude of a difference, without unit."""
        if not math.isfinite(value):
            return "unknown"
        if self.share and abs(value) > 1:
            return "100"
        return f"{100 * abs(value):.2f}" if self.share else f"{abs(value):.4g}"

    def amount(self, value: float) -> str:
        """Format the magnitude of a difference, with its unit."""
        return f"{self.size(value)} {self.unit_name}".rstrip() if math.isfinite(value) else self.size(value)

    def signed(self, value: float, digits: int = 2) -> str:
        """Format a difference with its sign, without unit."""
        if not math.isfinite(value):
            return "unknown"
        return f"{self.scaled(value):+.{digits}f}" if self.share else f"{self.scaled(value):+.4g}"

    def span(self, low: float, high: float, digits: int = 2) -> str:
        """Format the mean and an interval, without unit."""
        return f"{self.signed(self.mean, digits)} [{self.signed(low, digits)}, {self.signed(high, digits)}]"

    @property
    def smallest(self) -> str:
        """The smallest detectable true difference."""
        return "nothing" if self.finds_nothing else self.amount(self.detectable)


def decide(
    result: Difference,
    *,
    margin: float | None = None,
    p_value: float | None = None,
    interval: tuple[float, float] | None = None,
    joint: tuple[float, float] | None = None,
    level: float | None = None,
) -> Verdict:
    """Return the verdict on one arm.

    Args:
        margin: a difference too small to matter; without it nothing is called "no difference".
        p_value: a corrected one instead of the result's.
        interval: a corrected one instead of the result's.
        joint: the interval that has to lie within the margin; the result's by default.
        level: of the interval that more seeds would be judged by; the result's by default.
    """
    p = result.p_value if p_value is None else p_value
    least, most = joint or (result.low, result.high)
    unit = f" {result.unit}" if result.unit and not result.share else ""
    numbers = f"{result.span(*(interval or (result.low, result.high)))}{unit}"
    about = "" if result.design != "fixed" else "; this holds for these trained weights only, not for other trainings"
    about += "; this holds over seeds on these samples only, not for other samples" if result.samples_fixed else ""
    if result.spread.certain and result.mean == 0:
        hidden = same_everywhere_hides(result)
        if hidden > (MATTERS if margin is None else margin):
            return Verdict(
                "cannot tell",
                f"cannot tell: both arms are right and wrong on exactly the same {result.n_samples:,} samples, which "
                f"may hide a difference of up to {result.amount(hidden)}; train longer or validate on more "
                f"samples{about}",
            )
        return Verdict("no difference", f"no difference at all: both arms have the same score in every case{about}")
    within = margin is not None and -margin < least and most < margin
    if p < 1 - result.level:
        kind: Kind = "helps" if (result.mean > 0) == result.larger_is_better else "hurts"
        small = f", by less than {result.amount(margin or 0)}" if within else ""
        return Verdict(kind, f"{kind}{small}: {numbers}, p = {p:.2g}{about}")
    if within:
        return Verdict("no difference", f"no difference above {result.amount(margin or 0)}: {numbers}{about}")
    advice, more = _what_next(result, margin, level or result.level)
    finds = f"detects {result.amount(result.detectable)} or more four times out of five"
    finds = "is too small to detect any possible difference" if result.finds_nothing else finds
    return Verdict("cannot tell", f"cannot tell yet: {numbers}; this experiment {finds}; {advice}{about}", more)


def same_everywhere_hides(result: Difference) -> float:
    """Return the largest difference that arms with equal results may have on other samples, by the rule of three."""
    return 3 / result.n_samples if result.right_or_wrong and result.n_samples else 0.0


def _what_next(result: Difference, margin: float | None, level: float) -> tuple[str, int | None]:
    """Return advice for an undecided difference, and the number of seeds to add."""
    wanted = abs(result.mean) if margin is None else margin
    if result.design == "fixed":
        return "compare several seeds", None
    if result.n_seeds < 2:
        return "compare two or more seeds, which separate the variance of trainings from that of samples", None
    if wanted == 0:
        return "give a margin, the smallest difference that matters", None
    target = result.amount(wanted) + ("" if margin is not None else ", the observed difference")
    needed = result.seeds_needed(wanted, level=level)
    if needed is None and result.n_samples == 0:
        return f"to detect {target}, more than {MOST_SEEDS:,} seeds would be needed", None
    if needed is None:
        samples = result.samples_needed(wanted, level=level)
        return f"more seeds will not detect {target}: test on {samples:,} samples", None
    more = max(needed - result.n_seeds, 1)
    if out_of_reach(more, margin):
        return (
            f"detecting {target}, would take {more:,} more seeds: give a margin, the smallest difference that matters",
            more,
        )
    return f"run {more} more seed{'s' if more > 1 else ''} of each arm to detect {target}", more
