"""What a comparison found."""

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
    """One arm as it was run."""

    name: str  # of the arm
    text: str  # how it was written
    # "finished"; "partly failed" if only some of its seeds finished; "failed" if none did
    status: Literal["finished", "partly failed", "failed"]
    seeds: tuple[int, ...]  # that finished
    scores: tuple[float, ...]  # one a finished seed, in the metric that is compared
    mean: float | None  # of the scores; None without any
    runs: Mapping[int, Path]  # folder of every finished seed's run
    failures: Mapping[int, str]  # reason of every seed that did not finish, by seed; -1 stands for all of them
    identical_to: str | None = None  # an arm with the very same settings, whose runs these are
    stability: Stability | None = None  # how often its trainings failed or diverged; None for one that cannot be built


@dataclass(frozen=True)
class ClassDifference:
    """How an arm does on one class, against the reference."""

    name: str  # of the class
    samples: int  # of it
    reference: float  # mean score of the reference
    arm: float  # mean score of the arm
    difference: Difference  # with its interval, for this class alone
    p_holm: float  # its p-value, corrected for the number of classes


@dataclass(frozen=True)
class Disagreement:
    """An image that one arm answers better than the reference, or worse."""

    place: int  # in the validation set
    name: str  # of the image
    label: str  # name of its class, or what else the right answer is
    reference: float  # mean score of the reference's trainings: of right and wrong answers, the share that is right
    arm: float  # mean score of the arm's trainings


@dataclass(frozen=True)
class Cost:
    """What an arm costs."""

    parameters: int | None  # of the model
    macs: int | None  # multiply-adds of one image; None where not counted
    # mean over seeds, without the first epoch where there are several; None without a run
    seconds_per_step: float | None
    # seconds a step over those of the reference, paired by seed; None with fewer than two seeds
    step_ratio: Ratio | None
    seconds: float | None  # of training, mean over seeds
    peak_memory: int | None  # bytes on the GPU, the largest of the seeds; None where not recorded
    equal_seconds: float | None  # the shortest run of this arm and the reference
    # difference of the primary metric when each has trained that long, over seeds; None if not known
    at_equal_time: Difference | None


@dataclass(frozen=True)
class Findings:
    """Everything a comparison found; the runs it comes from are ordinary run folders.

    Attributes:
        path: of its folder.
        plan: what was held equal and what was expected.
        metric: what is compared.
        reference: the arm that others are compared with.
        arms: all of them, in the order given.
        differences: each arm against the reference, judged together; arms that failed or are identical are not in it.
        other: the same for other numbers that the runs ended with: metric to arm to its difference, over seeds.
        classes: each arm's differences class by class.
        disagreements: each arm's images with the largest differences, gains first.
        costs: of each arm.
        notes: what has to be said beside the numbers.
        unaffected: arms that came out like another one to the bit; the notes tell of them too.
        primary: the metric that runs are judged by.
        metrics: what is known of the numbers, by name.
        binary: names of the metrics whose scores are right or wrong, 0 or 1, for every image.
        class_metric: what classes are compared in; None where there is nothing to compare them in.
        sample_metric: what single images are compared in; likewise.
        look: how many times one has looked at this comparison, this time included; 0 where it does not matter.
        tuned: how the arms' settings were found; None where they were not sought.
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
        """Return what is known of a number by its name; None for one that no task describes."""
        return None if name is None else find_metric(self.metrics, name)

    def show(self, metric: str | None, value: float | None) -> str:
        """Return a value of a metric as text."""
        if value is None or not math.isfinite(value):
            return "none"
        spec = self.spec(metric)
        return f"{value:.4g}" if spec is None else spec.show(value)

    def words(self, metric: str | None) -> str:
        """Return what people call a metric; its name where nothing is known of it."""
        spec = self.spec(metric)
        return spec.words if spec is not None else metric or "score"

    def arm(self, name: str) -> ArmResult:
        """Return an arm by its name."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(f"there is no arm {name!r}; there are {', '.join(arm.name for arm in self.arms)}")

    def gains_and_losses(self, name: str) -> tuple[list[Disagreement], list[Disagreement]]:
        """Return the images that an arm answers better than the reference, and those that it answers worse."""
        spec, found = self.spec(self.sample_metric), self.disagreements.get(name, ())
        more, less = ([x for x in found if x.arm > x.reference], [x for x in found if x.arm < x.reference])
        return (more, less) if spec is None or spec.larger_is_better else (less, more)

    def never_applied(self, name: str) -> str | None:
        """Return the arm that one trained and answers exactly like, seed by seed; None where there is none."""
        own = self.arm(name).identical_to or name
        found = [one for one in self.unaffected if one.arm == own and one.same == "everything"]
        whole = [one.like for one in found if set(one.seeds) == set(self.arm(name).seeds)]
        return whole[0] if whole else None

    def verdict(self, name: str) -> Verdict:
        """Return what follows for an arm, in words."""
        arm = self.arm(name)
        like = self.never_applied(name)
        if like == self.reference:
            return Verdict("never applied", f"never applied: it trained exactly like {like}, so it was not tried here")
        if like is not None:
            known = self.verdict(like)
            return replace(known, text=f"never applied to {like}, like which it trained: {known.text}")
        if name in self.differences:
            return self.differences[name].verdict
        if name == self.reference:
            return Verdict("no difference", "the reference that the other arms are compared with")
        if arm.identical_to is not None and arm.status != "failed":
            if arm.identical_to == self.reference:
                return Verdict("no difference", f"identical to {arm.identical_to}: the same settings, the same runs")
            return self.verdict(arm.identical_to)
        if arm.failures:
            reasons = "; ".join(dict.fromkeys(arm.failures.values()))
            return Verdict("cannot tell", f"{count_of(len(arm.seeds), 'seed')} finished, the others failed: {reasons}")
        return Verdict("cannot tell", "there is nothing to compare it with")
