"""From finished runs to what a comparison found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .evidence import Evidence, common_places, larger_is_better, per_picture, same_pictures
from .exact import holm
from .paired import Difference, paired_difference, unpaired_difference
from .plan import PlannedArm
from .result import ClassDifference, Cost, Disagreement
from .scores import paired_scores, ratio_interval
from .statistic import macro_difference

FIELDS = {"top1": "correct", "loss": "loss"}  # metrics that every picture has
SHOWN = 10  # pictures an arm, gains and losses each


@dataclass(frozen=True)
class Question:
    """What is asked of the runs.

    Attributes:
        metric: top1, loss, macro_top1, or any number that runs end with.
        larger: whether more of it is better.
        margin: a difference too small to matter.
        fixed: whether these very trainings are meant, not others.
        paired: whether runs of one seed belong together.
        level: confidence of the intervals.
    """

    metric: str = "top1"
    larger: bool = True
    margin: float | None = None
    fixed: bool = False
    paired: bool = True
    level: float = 0.95


def ask(metric: str, told: bool | None, **others: Any) -> Question:
    """Return a question after checking which way its metric is better."""
    larger = larger_is_better(metric, told)
    if larger is None:
        raise ValueError(
            f"metric={metric!r} was given, and its name does not say whether more is better; tell it: larger_is_better"
        )
    return Question(metric=metric, larger=larger, **others)


class Measure:
    """Compares arms with a reference.

    Args:
        arms: finished runs of each, by name.
        question: what is asked.
    """

    def __init__(self, arms: Mapping[str, Evidence], question: Question) -> None:
        self.arms, self.question = arms, question
        self.same = same_pictures(arms)
        self.places = common_places(arms) if self.same else np.empty(0, np.int64)
        self.labels = np.empty(0, np.int64)
        if len(self.places):
            one = next(arm for arm in arms.values() if arm.seeds)
            self.labels = per_picture(one, "label", one.seeds[:1], self.places)[0].astype(np.int64)
        self.notes: list[str] = []

    def seeds(self, reference: str, arm: str) -> tuple[int, ...]:
        """Return the seeds that finished in both arms."""
        return tuple(seed for seed in self.arms[reference].seeds if seed in self.arms[arm].seeds)

    def difference(self, reference: str, arm: str) -> Difference:
        """Return how much an arm differs from the reference in what is asked.

        Args:
            reference: name of the arm compared with.
            arm: name of the other.
        """
        question, seeds = self.question, self.seeds(reference, arm)
        shared: dict[str, Any] = {
            "level": question.level,
            "larger_is_better": question.larger,
            "margin": question.margin,
        }
        if not self._by_picture():
            return paired_scores(*(self._series(name, question.metric, seeds) for name in (reference, arm)), **shared)
        if question.metric == "macro_top1":
            return macro_difference(*self._pair(reference, arm, "correct", seeds), self.labels, **shared)
        field = FIELDS[question.metric]
        if not question.paired or (len(seeds) < 2 and not question.fixed):
            if question.paired:
                self.notes.append(f"{arm}: fewer than two seeds finished in both arms, so that seeds are not paired")
            own = [per_picture(self.arms[n], field, self.arms[n].seeds, self.places) for n in (reference, arm)]
            return unpaired_difference(*own, **shared)
        pair = self._pair(reference, arm, field, seeds)
        return paired_difference(*pair, seeds="fixed" if question.fixed else "random", **shared)

    def score(self, arm: str, seed: int) -> float:
        """Return what a run scored in what is asked."""
        if self._by_picture() and self.question.metric in FIELDS:
            return float(per_picture(self.arms[arm], FIELDS[self.question.metric], (seed,), self.places).mean())
        if self._by_picture():
            correct = per_picture(self.arms[arm], "correct", (seed,), self.places)[0]
            return float(np.mean([correct[self.labels == label].mean() for label in np.unique(self.labels)]))
        return self.arms[arm].score(self.question.metric, seed)

    def others(self, reference: str, arm: str) -> dict[str, Difference]:
        """Return the differences of all other numbers that runs ended with, over seeds."""
        seeds = self.seeds(reference, arm)
        if len(seeds) < 2:
            return {}
        names = [set(self.arms[name].scores(seed)) for name in (reference, arm) for seed in seeds]
        found = {}
        for metric in sorted(set.intersection(*names)):
            larger = larger_is_better(metric)
            if metric in (self.question.metric, f"val_{self.question.metric}") or larger is None:
                continue
            pair = [self._series(name, metric, seeds) for name in (reference, arm)]
            if np.isfinite(pair).all():
                found[metric] = paired_scores(*pair, level=self.question.level, larger_is_better=larger)
        return found

    def classes(self, reference: str, arm: str, names: tuple[str, ...]) -> tuple[ClassDifference, ...]:
        """Return the differences of accuracy class by class, the largest first; classes of one picture are left out."""
        seeds = self.seeds(reference, arm)
        if not len(self.places) or len(seeds) < (1 if self.question.fixed else 2):
            return ()
        first, second = self._pair(reference, arm, "correct", seeds)
        counted = [(label, self.labels == label) for label in range(len(names))]
        counted = [(label, mine) for label, mine in counted if mine.sum() >= 2]
        how: Any = "fixed" if self.question.fixed else "random"
        found = [paired_difference(first[:, m], second[:, m], seeds=how, level=self.question.level) for _, m in counted]
        corrected = holm([difference.p_value for difference in found])
        rows = [
            ClassDifference(
                names[label], int(m.sum()), float(first[:, m].mean()), float(second[:, m].mean()), difference, float(p)
            )
            for (label, m), difference, p in zip(counted, found, corrected, strict=True)
        ]
        return tuple(sorted(rows, key=lambda row: -abs(row.difference.mean)))

    def disagreements(self, reference: str, arm: str, source: Any) -> tuple[Disagreement, ...]:
        """Return the pictures on which the arms differ most, over all their trainings.

        Args:
            reference: name of the arm compared with.
            arm: name of the other.
            source: the validation pictures.
        """
        if not len(self.places):
            return ()
        rates = [
            per_picture(self.arms[n], "correct", self.arms[n].seeds, self.places).mean(0) for n in (reference, arm)
        ]
        gain = rates[1] - rates[0]
        order = np.argsort(-gain, kind="stable")
        best = [place for place in order[:SHOWN] if gain[place] > 0]
        worst = [place for place in order[::-1][:SHOWN] if gain[place] < 0]
        return tuple(
            Disagreement(
                int(self.places[column]),
                source.name(int(self.places[column])),
                source.classes[self.labels[column]],
                float(rates[0][column]),
                float(rates[1][column]),
            )
            for column in [*best, *worst]
        )

    def cost(self, reference: str | None, name: str, planned: PlannedArm) -> Cost:
        """Return what an arm costs, beside the reference."""
        arm = self.arms[name]
        steps = {seed: s for seed in arm.seeds if (s := arm.seconds_per_step(seed)) is not None}
        shared = self.seeds(reference, name) if reference is not None and reference != name else ()
        ratio = None
        if reference is not None and len(shared) >= 2:
            base = [self.arms[reference].seconds_per_step(seed) for seed in shared]
            own = [steps.get(seed) for seed in shared]
            if all(base) and all(own):
                ratio = ratio_interval(base, own, level=self.question.level)
        until, at_equal = self._at_equal_time(reference, name, shared) if reference is not None else (None, None)
        totals = [float(arm.summaries[seed]["seconds"]) for seed in arm.seeds]
        return Cost(
            parameters=arm.summaries[arm.seeds[0]]["parameters"] if arm.seeds else planned.parameters,
            macs=planned.macs,
            seconds_per_step=float(np.mean(list(steps.values()))) if steps else None,
            step_ratio=ratio,
            seconds=float(np.mean(totals)) if totals else None,
            peak_memory=arm.memory,
            equal_seconds=until,
            at_equal_time=at_equal,
        )

    def _at_equal_time(
        self, reference: str, name: str, seeds: tuple[int, ...]
    ) -> tuple[float | None, Difference | None]:
        """Read every run's accuracy where the shortest one ended, between the epochs by a straight line."""
        pair = [[self.arms[arm].curve(seed) for seed in seeds] for arm in (reference, name)]
        if len(seeds) < 2:
            return None, None
        until = min(float(seconds[-1]) for arm in pair for seconds, _ in arm)
        first, second = ([float(np.interp(until, *curve)) for curve in arm] for arm in pair)
        return until, paired_scores(first, second, level=self.question.level)

    def _by_picture(self) -> bool:
        return bool(len(self.places)) and self.question.metric in (*FIELDS, "macro_top1")

    def _pair(self, reference: str, arm: str, field: str, seeds: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        if not seeds:
            raise ValueError(f"no seed finished in both {reference} and {arm}")
        first, second = (per_picture(self.arms[name], field, seeds, self.places) for name in (reference, arm))
        return first, second

    def _series(self, arm: str, metric: str, seeds: tuple[int, ...]) -> list[float]:
        return [self.arms[arm].score(metric, seed) for seed in seeds]
