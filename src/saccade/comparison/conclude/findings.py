"""Findings of a comparison."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ...statistics.difference import Difference, Verdict
from ...statistics.multiplicity import Judgement
from ...statistics.ratio import Ratio
from ...statistics.stability import Stability
from ...support.wording import count_of
from ...tasks.metric import MetricSpec
from ..plan.plan import Note, Plan
from ..plan.request import find_metric
from ..plan.tuned import TunedArms
from .evidence import Unaffected


@dataclass(frozen=True)
class ArmResult:
    """Result of one arm."""

    name: str  # name of the arm
    text: str  # its definition
    # "finished", "partly failed" (some seeds failed) or "failed" (all did)
    status: Literal["finished", "partly failed", "failed"]
    seeds: tuple[int, ...]  # finished seeds
    scores: tuple[float, ...]  # score of each finished seed, in the compared metric
    mean: float | None  # mean of the scores
    runs: Mapping[int, Path]  # run folders of finished seeds
    failures: Mapping[int, str]  # reason for each failed seed; -1 stands for all seeds
    identical_to: str | None = None  # name of an arm with identical settings, which shares the runs
    stability: Stability | None = None  # failure and divergence rates; None for an arm that cannot be built


@dataclass(frozen=True)
class ClassDifference:
    """An arm's difference from the reference on one class."""

    name: str  # name of the class
    samples: int  # number of samples
    reference: float  # mean score of the reference
    arm: float  # mean score of the arm
    difference: Difference  # with interval, for this class only
    p_holm: float  # p-value with Holm's correction over classes


@dataclass(frozen=True)
class Disagreement:
    """An image on which an arm differs from the reference."""

    place: int  # index in the validation samples
    name: str  # of the image
    label: str  # its class or other target as text
    reference: float  # mean score of the reference's trainings, such as the share of correct predictions
    arm: float  # mean score of the arm's trainings


@dataclass(frozen=True)
class Cost:
    """Costs of an arm."""

    parameters: int | None  # parameters of the model
    macs: int | None  # multiply-adds per image, if counted
    # mean over seeds, without the first epoch if there are several
    seconds_per_step: float | None
    # ratio of seconds a step to the reference's, paired by seed; None with fewer than two seeds
    step_ratio: Ratio | None
    seconds: float | None  # duration of training, mean over seeds
    peak_memory: int | None  # largest over seeds, in bytes of the GPU, if recorded
    equal_seconds: float | None  # duration of the shortest run of this arm and the reference
    # difference of the primary metric after that duration, over seeds, if known
    at_equal_time: Difference | None


@dataclass(frozen=True)
class Findings:
    """Findings of a comparison, whose runs are ordinary run folders.

    Attributes:
        path: folder of the comparison.
        plan: common settings and expectations.
        metric: the compared metric.
        reference: the arm that others are compared with.
        arms: all arms, in order.
        differences: differences of arms from the reference, with a common correction; without failed and identical
            arms.
        other: differences in other metrics, by metric and arm, over seeds.
        classes: differences by class, for each arm.
        disagreements: images with the largest differences, for each arm, gains first.
        costs: costs of each arm.
        notes: notes for the reader.
        unaffected: arms with results identical to another one's, also in the notes.
        primary: the runs' primary metric.
        metrics: specifications of the metrics, by name.
        binary: names of metrics whose sample scores are 0 or 1.
        class_metric: metric for comparing classes, if any.
        sample_metric: metric for comparing single images, if any.
        look: number of looks at this comparison, including this one; 0 if irrelevant.
        tuned: how the arms' settings were tuned, if they were.
    """

    path: Path
    plan: Plan
    metric: str
    reference: str
    arms: tuple[ArmResult, ...]
    differences: Mapping[str, Judgement]
    other: Mapping[str, Mapping[str, Difference]]
    classes: Mapping[str, tuple[ClassDifference, ...]]
    disagreements: Mapping[str, tuple[Disagreement, ...]]
    costs: Mapping[str, Cost]
    notes: tuple[Note, ...] = ()
    unaffected: tuple[Unaffected, ...] = ()
    primary: str = ""
    metrics: Mapping[str, MetricSpec] = field(default_factory=dict)
    binary: tuple[str, ...] = ()
    class_metric: str | None = None
    sample_metric: str | None = None
    look: int = 0
    tuned: TunedArms | None = None

    def spec(self, name: str | None) -> MetricSpec | None:
        """Return a metric's specification by name; None if no task describes it."""
        return None if name is None else find_metric(self.metrics, name)

    def show(self, metric: str | None, value: float | None) -> str:
        """Format a value of a metric."""
        if value is None or not math.isfinite(value):
            return "none"
        spec = self.spec(metric)
        return f"{value:.4g}" if spec is None else spec.show(value)

    def words(self, metric: str | None) -> str:
        """Return a metric's words, or its name if it is unknown."""
        spec = self.spec(metric)
        return spec.words if spec is not None else metric or "score"

    def arm(self, name: str) -> ArmResult:
        """Return an arm by name."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(f"no arm {name!r}; arms: {', '.join(arm.name for arm in self.arms)}")

    def gains_and_losses(self, name: str) -> tuple[list[Disagreement], list[Disagreement]]:
        """Return the images on which an arm is better than the reference, and those on which it is worse."""
        spec, found = self.spec(self.sample_metric), self.disagreements.get(name, ())
        more, less = ([x for x in found if x.arm > x.reference], [x for x in found if x.arm < x.reference])
        return (more, less) if spec is None or spec.larger_is_better else (less, more)

    def never_applied(self, name: str) -> str | None:
        """Return the arm with identical training and predictions for every seed, if any."""
        own = self.arm(name).identical_to or name
        found = [one for one in self.unaffected if one.arm == own and one.same == "everything"]
        whole = [one.like for one in found if set(one.seeds) == set(self.arm(name).seeds)]
        return whole[0] if whole else None

    def verdict(self, name: str) -> Verdict:
        """Return the verdict on an arm as text."""
        arm = self.arm(name)
        like = self.never_applied(name)
        if like == self.reference:
            return Verdict(
                "never applied", f"never applied: it trained exactly like {like}, so this comparison does not test it"
            )
        if like is not None:
            known = self.verdict(like)
            return replace(known, text=f"never applied to {like} (it trained exactly like it): {known.text}")
        if name in self.differences:
            return self.differences[name].verdict
        if name == self.reference:
            return Verdict("no difference", "the reference that the other arms are compared with")
        if arm.identical_to is not None and arm.status != "failed":
            if arm.identical_to == self.reference:
                return Verdict("no difference", f"identical to {arm.identical_to}: same settings, same runs")
            return self.verdict(arm.identical_to)
        if arm.failures:
            reasons = "; ".join(dict.fromkeys(arm.failures.values()))
            return Verdict("cannot tell", f"{count_of(len(arm.seeds), 'seed')} finished, the others failed: {reasons}")
        return Verdict("cannot tell", "there is nothing to compare it with")
