"""The plan of a comparison: differences between arms, what is held equal, time, and detectable differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...settings.decisions import Decision, differing, say_decision, say_who
from ...statistics.multiplicity import alpha_share
from ...statistics.planning import plan_detectable
from ...support.durations import say_duration
from ...support.wording import count_of
from ...tasks.metric import MetricSpec
from ...training.pace import Pace
from .snapshot import ArmSnapshot, Check, check_all

ASSUMED_ACCURACY = 0.8
OWN_SAMPLES = (
    "but different for each seed, since the split depends on the seed; intervals are over seeds only. A separate "
    "validation set gives narrower ones"
)
DETECTABLE = "80% power"


@dataclass(frozen=True)
class Note:
    """A remark on the numbers."""

    # "failure", "diverged", "looks", "reference", "unaffected", "unpaired", "not compared", "timing", "untimed",
    # "budget", "tuned", "edge" or "undertrained"
    kind: str
    message: str  # what is so
    advice: str = ""  # what to do about it; empty for nothing
    arm: str | None = None  # that it is about; None for all

    def __str__(self) -> str:
        return f"{self.message}; {self.advice}" if self.advice else self.message


@dataclass(frozen=True)
class PlannedArm:
    """A planned arm."""

    name: str  # of the arm
    text: str  # how it was written
    # settings that differ from the reference: name to the reference's value and its own
    changes: Mapping[str, tuple[Any, Any]]
    checks: tuple[Check, ...] = ()  # what is held equal with the reference; empty for the reference itself
    identical_to: str | None = None  # an earlier arm with the very same settings, whose runs it shares
    failed: str | None = None  # why it cannot be run
    epochs: int = 0  # of its runs
    pace: Pace | None = None  # how long they take; None if that is not known
    parameters: int | None = None  # of its model
    macs: int | None = None  # multiply-adds of one image
    notes: tuple[str, ...] = ()  # what building it had to say
    decisions: tuple[Decision, ...] = ()  # by which its settings differ from the recipe

    def check(self, what: str) -> Check:
        """Return a check by name, such as "order of the images"."""
        found = [check for check in self.checks if check.what == what]
        if not found:
            raise KeyError(
                f"{what!r} is not checked; available checks: {', '.join(repr(check.what) for check in self.checks)}"
            )
        return found[0]


@dataclass(frozen=True)
class Plan:
    """The planned runs, and the differences that they can detect.

    Attributes:
        data: name of the images.
        reference: the arm that others are compared with.
        arms: all of them, in the order given.
        seeds: that each is trained with.
        samples: to validate on.
        same_samples: whether all seeds validate on the same ones.
        runs: in all.
        finished: of them, before.
        side_by_side: runs at a time.
        seconds: that the rest is expected to take; None if not known.
        estimate: how that was found.
        budget: what the time given allowed, in words.
        detectable: smallest true difference of a share, such as accuracy, that will probably be found; None with one
            seed, or where that is not known before runs are finished.
        detectable_how: what that assumes, or why it is not known.
        common: what each arm adds to, in words.
        size: model, image size and length of the reference's runs, in words.
        outlook: what more time would give, and whether runs will look under-trained.
    """

    data: str
    reference: str
    arms: tuple[PlannedArm, ...]
    seeds: tuple[int, ...]
    samples: int
    same_samples: bool
    runs: int
    finished: int
    side_by_side: int
    seconds: float | None
    estimate: str
    budget: str
    detectable: float | None
    detectable_how: str
    common: str = ""
    size: str = ""
    outlook: tuple[str, ...] = ()

    def arm(self, name: str) -> PlannedArm:
        """Return an arm by its name."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(f"no arm {name!r}; arms: {', '.join(arm.name for arm in self.arms)}")

    def remark(self, arm: PlannedArm) -> str:
        """Return remarks on an arm that its changes do not imply."""
        if arm.failed is not None:
            return f"cannot be run: {arm.failed}"
        if arm.name == self.reference:
            return "the reference"
        if arm.identical_to is not None:
            return f"identical to {arm.identical_to}, not run again"
        return "" if arm.changes else "the same settings"

    @property
    def held_equal(self) -> list[tuple[str, str, str]]:
        """The checks, equal or different and why: once for all arms, and for each arm that differs."""
        rows = []
        checked = [arm for arm in self.arms if arm.checks]
        for number, first in enumerate(checked[0].checks if checked else ()):
            differing = [(arm.name, arm.checks[number]) for arm in checked if not arm.checks[number].equal]
            if not differing:
                rows.append((first.what, "equal", first.detail))
            elif len(differing) < len(checked):
                rows.append((first.what, "equal in the other arms", ""))
            rows += [(check.what, f"differs in {name}", check.detail) for name, check in differing]
        if not self.same_samples:
            rows.append(("validation samples", "equal in all arms", OWN_SAMPLES))
        return rows

    def __str__(self) -> str:
        lines = [f"{count_of(len(self.arms), 'arm')} on {self.data}, reference {self.reference}:"]
        lines += [self.common] if self.common else []
        for arm in self.arms:
            changes = "; ".join(f"{name} = {own!r} (not {base!r})" for name, (base, own) in arm.changes.items())
            lines.append(f"  {arm.name}: {self.remark(arm) or changes}")
            lines += [f"    {note}" for note in arm.notes if arm.name == self.reference]
        lines += self._decision_lines()
        lines.append("Held equal (checked for the first seed):")
        lines += [f"  {what}: {where}{', ' if detail else ''}{detail}" for what, where, detail in self.held_equal]
        return "\n".join([*lines, *self._cost_lines()])

    def differing(self) -> list[tuple[str, str, str, str]]:
        """Return each arm's decisions that differ from the reference's: arm, setting, the reference's and its own."""
        base = self.arm(self.reference).decisions
        others = [arm for arm in self.arms if arm.decisions and arm.identical_to is None and arm.name != self.reference]
        found = [(arm.name, pair) for arm in others if base for pair in differing(base, arm.decisions)]
        return [(name, one.setting, say_who(a), say_who(b)) for name, (a, b) in found if (one := a or b) is not None]

    def _decision_lines(self) -> list[str]:
        base = self.arm(self.reference).decisions
        lines = [f"Settings of {self.reference} that differ from the recipe:"] if base else []
        lines += [f"  {say_decision(one)}" for one in base]
        differ = [
            f"  {name}: {setting} = {own}; {self.reference}: {ref}" for name, setting, ref, own in self.differing()
        ]
        return [*lines, "Decisions that differ between the arms:", *differ] if differ else lines

    def _cost_lines(self) -> list[str]:
        seeds = f"seed{'s' * (len(self.seeds) != 1)} {', '.join(map(str, self.seeds))}"
        lines = [f"Model of {self.reference}: {self.size}."] if self.size else []
        lines.append(f"{count_of(self.runs, 'run')}, {seeds}; {self.finished or 'none'} finished.")
        if self.runs > self.finished:
            side = f", {self.side_by_side} in parallel" if self.side_by_side > 1 else ""
            time = "unknown" if self.seconds is None else f"about {say_duration(self.seconds)}{side}"
            lines.append(f"Expected time: {time} ({self.estimate}).")
        lines += [f"Budget: {self.budget}."] if self.budget else []
        if self.detectable is not None:
            on = f"on {self.samples:,} validation samples"
            if self.detectable > 1:
                lines.append(
                    f"Too small to detect a difference: with {count_of(len(self.seeds), 'seed')} {on}, even 100 points "
                    f"would be detected with less than 80% power ({self.detectable_how})."
                )
            else:
                about = f"about {100 * self.detectable:.1f} points {on}"
                lines.append(f"Smallest detectable difference: {about} ({DETECTABLE}; {self.detectable_how}).")
        elif self.detectable_how:
            lines.append(f"Smallest detectable difference: {self.detectable_how}.")
        return [*lines, *self.outlook]


def describe(arm: ArmSnapshot | None, base: ArmSnapshot) -> dict[str, Any]:
    """Return what is known of a built arm, by attribute of `PlannedArm`; empty if it could not be built."""
    if arm is None:
        return {}
    checks, measured = () if arm is base else check_all(base, arm), {"parameters": arm.parameters, "macs": arm.macs}
    return {"checks": checks, "notes": arm.notes, "decisions": arm.decisions, **measured}


def say_size(arm: ArmSnapshot) -> str:
    """Describe the model, the image size and the length of a run."""
    config = arm.config
    side = "" if config.data.img_size is None else f"input resolution {config.data.img_size}, "
    return (
        f"{config.model.name}, {arm.parameters:,} parameters, {side}"
        f"{count_of(config.schedule.epochs, 'epoch')} of {count_of(arm.steps, 'step')} of batch size {arm.batch_size}"
    )


def estimate_detectable(
    metric: MetricSpec, *, seeds: int, samples: int, arms: int, look: int = 1, scores: Sequence[float] = ()
) -> tuple[float | None, str]:
    """Return the smallest difference that a comparison will probably detect, with its assumptions.

    Args:
        metric: that runs are judged by; only of a share of right answers this can be said before any run.
        look: at results with these seeds; see `alpha_share`.
        scores: of finished runs of the reference, if there are any.
    """
    if seeds < 2 or samples < 2:
        return None, ""
    if not metric.share or metric.statistic is not None or metric.by_group:
        return None, f"unknown until runs are finished, as the variance of {metric.words} is not known"
    known = sum(scores) / len(scores) if scores else ASSUMED_ACCURACY
    accuracy = min(max(known, 1 / samples), 1 - 1 / samples)
    how = f"assuming {metric.words} {accuracy:.0%}"
    if scores:
        how = f"{metric.words} {accuracy:.0%} as in {count_of(len(scores), 'finished run')}"
    how += ", 0.5 points of variation between seeds"
    how += f", corrected for {arms} arms" if arms > 1 else ""
    return plan_detectable(seeds, samples, accuracy, level=1 - 0.05 * alpha_share(look) / max(arms, 1)), how
