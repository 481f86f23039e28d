"""Compute a comparison's findings from finished runs."""

from collections.abc import Mapping

import numpy as np

from ...data.source import Source
from ...statistics.difference import Difference
from ...statistics.inputs import right_or_wrong
from ...statistics.jackknife import statistic_difference
from ...statistics.macro import macro_difference
from ...statistics.multiplicity import holm
from ...statistics.paired import Seeds, Terms, paired_difference, paired_scores, unpaired_difference
from ...statistics.ratio import ratio_interval
from ...statistics.stability import Stability
from ...tasks.metric import GROUP, MetricSpec
from ..plan.plan import Note, PlannedArm
from ..plan.request import ComparisonSpec, find_metric
from .diverged import find_diverged
from .evidence import Evidence, common_places, per_sample, same_samples
from .findings import ClassDifference, Cost, Disagreement

SAMPLES_SHOWN = 10  # most gains and losses of an arm, each


class Measure:
    """Compares arms with a reference.

    Attributes:
        metrics: specifications of the runs' metrics, by name.
        places: indices of samples in every run; empty if seeds have different samples.
        groups: groups of these samples, such as classes, if any.
        class_metric: metric for comparing groups; None if no metric is a mean over samples.
        sample_metric: metric for comparing single samples; likewise.
        notes: notes for the reader.
    """

    def __init__(self, arms: Mapping[str, Evidence], question: ComparisonSpec) -> None:
        self.arms, self.question = arms, question
        self.metrics = {name: spec for arm in arms.values() for name, spec in arm.metrics.items()}
        self.metrics |= question.metrics
        self.same = same_samples(arms)
        self.places = common_places(arms) if self.same else np.empty(0, np.int64)
        self.groups: np.ndarray | None = None
        if len(self.places) and self._have(GROUP):
            one = next(arm for arm in arms.values() if arm.seeds)
            self.groups = per_sample(one, GROUP, one.seeds[:1], self.places)[0].astype(np.int64)
        self.class_metric = self._first_mean(question.primary, question.metric, *self.metrics)
        self.sample_metric = self._first_mean(question.metric, question.primary, *self.metrics)
        self.notes: list[Note] = []

    @property
    def binary(self) -> tuple[str, ...]:
        """Names of the metrics whose sample scores are all 0 or 1."""
        samples = [scores.columns for arm in self.arms.values() for scores in arm.samples.values()]
        plain = {name: spec.column for name, spec in self.metrics.items() if spec.statistic is None}
        return tuple(
            name
            for name, column in plain.items()
            if self._have(column) and all(right_or_wrong(columns[column]) for columns in samples)
        )

    def seeds(self, reference: str, arm: str) -> tuple[int, ...]:
        """Return the seeds that finished in both arms."""
        return tuple(seed for seed in self.arms[reference].seeds if seed in self.arms[arm].seeds)

    def difference(self, reference: str, arm: str) -> Difference:
        """Return an arm's difference from the reference in the compared metric."""
        question, seeds = self.question, self.seeds(reference, arm)
        paired = question.paired and (question.fixed or len(seeds) >= (1 if question.folds else 2))
        if question.paired and not paired and self._by_sample(question.metric) is not None:
            message = f"{arm}: fewer than two seeds finished in both arms, so seeds are not paired"
            self.notes.append(Note("unpaired", message, arm=arm))
        terms = self._terms(question.metric, question.larger_is_better, margin=question.margin)
        return self._difference(reference, arm, question.metric, terms, paired=paired)

    def _difference(self, reference: str, arm: str, metric: str, terms: Terms, *, paired: bool) -> Difference:
        """Return the difference in a metric: over seeds and samples if there are sample scores, else over seeds."""
        seeds, spec = self.seeds(reference, arm), self._by_sample(metric)
        if spec is None:
            pair = [self._series(name, metric, seeds) for name in (reference, arm)]
            return paired_scores(*pair, samples_fixed=self.same, **terms)
        how: Seeds = "fixed" if self.question.fixed and paired else "random"
        first, second = (
            self._records(name, spec, seeds if paired else self.arms[name].seeds) for name in (reference, arm)
        )
        if spec.statistic is not None:
            return statistic_difference(first, second, spec.statistic, seeds=how, paired=paired, **terms)
        if spec.by_group:
            return macro_difference(first, second, self.groups, seeds=how, paired=paired, **terms)
        if paired:
            return paired_difference(first, second, seeds=how, **terms)
        return unpaired_difference(first, second, **terms)

    def score(self, arm: str, seed: int) -> float:
        """Return a run's score in the compared metric."""
        spec = self._by_sample(self.question.metric)
        if spec is None:
            return self.arms[arm].score(self.question.metric, seed)
        columns = {spec.column: per_sample(self.arms[arm], spec.column, (seed,), self.places)[0]}
        return spec.combine(columns if self.groups is None else {**columns, GROUP: self.groups})

    def others(self, reference: str, arm: str) -> dict[str, Difference]:
        """Return the differences in all other metrics."""
        seeds = self.seeds(reference, arm)
        if len(seeds) < 2:
            return {}
        names = [set(self.arms[name].scores(seed)) for name in (reference, arm) for seed in seeds]
        found = {}
        for metric in sorted(set.intersection(*names)):
            spec = find_metric(self.metrics, metric)
            if metric in (self.question.metric, f"val_{self.question.metric}") or spec is None:
                continue
            if np.isfinite([self._series(name, metric, seeds) for name in (reference, arm)]).all():
                terms = self._terms(metric, spec.larger_is_better)
                found[metric] = self._difference(reference, arm, metric, terms, paired=True)
        return found

    def classes(self, reference: str, arm: str, names: tuple[str, ...]) -> tuple[ClassDifference, ...]:
        """Return the differences by class, largest first, without classes of one image."""
        seeds = self.seeds(reference, arm)
        least = 1 if self.question.fixed or self.question.folds else 2
        if self.groups is None or self.class_metric is None or len(seeds) < least:
            return ()
        spec = self.metrics[self.class_metric]
        first, second = (self._records(name, spec, seeds) for name in (reference, arm))
        counted = [(group, self.groups == group) for group in range(len(names))]
        counted = [(group, mine) for group, mine in counted if mine.sum() >= 2]
        how: Seeds = "fixed" if self.question.fixed else "random"
        terms = self._terms(spec.name, spec.larger_is_better)
        folds = terms.get("folds")
        own: list[Terms] = [{**terms, "folds": None if folds is None else folds.subset(m)} for _, m in counted]
        found = [
            paired_difference(first[:, m], second[:, m], seeds=how, **one)
            for (_, m), one in zip(counted, own, strict=True)
        ]
        corrected = holm([difference.p_value for difference in found])
        rows = [
            ClassDifference(
                names[group], int(m.sum()), float(first[:, m].mean()), float(second[:, m].mean()), difference, float(p)
            )
            for (group, m), difference, p in zip(counted, found, corrected, strict=True)
        ]
        return tuple(sorted(rows, key=lambda row: -abs(row.difference.mean)))

    def disagreements(self, reference: str, arm: str, source: Source) -> tuple[Disagreement, ...]:
        """Return the images with the largest mean differences, gains first."""
        if not len(self.places) or self.sample_metric is None:
            return ()
        spec = self.metrics[self.sample_metric]
        means = [self._records(name, spec, self.arms[name].seeds).mean(0) for name in (reference, arm)]
        gain = np.nan_to_num(means[1] - means[0]) * (1 if spec.larger_is_better else -1)
        order = np.argsort(-gain, kind="stable")
        best = [place for place in order[:SAMPLES_SHOWN] if gain[place] > 0]
        worst = [place for place in order[::-1][:SAMPLES_SHOWN] if gain[place] < 0]
        found = []
        for column in (*best, *worst):
            place, (before, after) = int(self.places[column]), (float(mean[column]) for mean in means)
            found.append(Disagreement(place, source.name(place), source.targets.describe(place), before, after))
        return tuple(found)

    def cost(self, reference: str | None, name: str, planned: PlannedArm) -> Cost:
        """Return an arm's costs compared with the reference."""
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
        """Compare the primary metric at the end of the shortest run, interpolated between epochs."""
        spec = self.metrics.get(self.question.primary)
        if len(seeds) < 2 or spec is None:
            return None, None
        pair = [
            [self.arms[arm].curve(spec.name, seed, chance=spec.chance) for seed in seeds] for arm in (reference, name)
        ]
        if not all(len(seconds) for arm in pair for seconds, _ in arm):
            return None, None
        until = min(float(seconds[-1]) for arm in pair for seconds, _ in arm)
        if until < max(float(seconds[0]) for arm in pair for seconds, _ in arm):
            return None, None  # not validated yet, and the initial value is unknown
        first, second = ([float(np.interp(until, *curve)) for curve in arm] for arm in pair)
        terms = self._terms(spec.name, spec.larger_is_better)
        return until, paired_scores(first, second, samples_fixed=self.same, **terms)

    def stability(self, arm: str, failed: int) -> Stability:
        """Return failure and divergence rates of an arm's trainings."""
        primary, runs = self.question.primary, self.arms[arm]
        scores = {seed: runs.score(primary, seed) for seed in runs.seeds}
        every = [one.score(primary, seed) for one in self.arms.values() for seed in one.seeds]
        losses = {
            seed: [float(record["train_loss"]) for record in runs.records[seed] if "train_loss" in record]
            for seed in runs.seeds
        }
        usual = float(np.nanmedian(every)) if every else None
        metric = self.metrics.get(primary)
        diverged = find_diverged(scores, losses, usual=usual, metric=metric, samples=len(self.places))
        return Stability.count(len(scores), failed, diverged, level=self.question.level)

    def failure_loss(self, arm: str, reference: str) -> tuple[float, float] | None:
        """Return the loss in score when a training of the arm or of the reference fails; None if unknown."""
        spec = find_metric(self.metrics, self.question.metric)
        if spec is None or not spec.share or not spec.larger_is_better:
            return None
        found = [np.mean([self.score(name, seed) for seed in self.arms[name].seeds]) for name in (arm, reference)]
        return (max(float(found[0]) - (spec.chance or 0.0), 0.0), max(float(found[1]) - (spec.chance or 0.0), 0.0))

    def _by_sample(self, metric: str) -> MetricSpec | None:
        """Return a metric, also by its key in summary.json, if all runs have sample scores of it."""
        spec = find_metric(self.metrics, metric)
        if spec is None or not len(self.places) or not self._have(spec.column):
            return None
        return None if spec.by_group and self.groups is None else spec

    def _have(self, column: str) -> bool:
        return all(arm.has(column) for arm in self.arms.values()) and any(arm.seeds for arm in self.arms.values())

    def _first_mean(self, *names: str) -> str | None:
        """Return the first metric that is a mean over samples."""
        for name in names:
            spec = self.metrics.get(name)
            if spec is not None and spec.statistic is None and not spec.by_group and self._have(spec.column):
                return name
        return None

    def _records(self, arm: str, spec: MetricSpec, seeds: tuple[int, ...]) -> np.ndarray:
        """Return an arm's records, seeds x samples x ...; float64 if they are scalars."""
        if not seeds:
            raise ValueError(f"no comparable seed of {arm} finished")
        found = per_sample(self.arms[arm], spec.column, seeds, self.places)
        return found if spec.statistic is not None else found.astype(np.float64)

    def _series(self, arm: str, metric: str, seeds: tuple[int, ...]) -> list[float]:
        return [self.arms[arm].score(metric, seed) for seed in seeds]

    def _terms(self, metric: str, larger: bool, margin: float | None = None) -> Terms:
        """Return the terms for judging and showing a difference of a metric."""
        spec = find_metric(self.metrics, metric)
        terms: Terms = {"level": self.question.level, "larger_is_better": larger, "margin": margin}
        if self.question.folds is not None:
            folds = self.question.folds  # of the samples in every run
            terms["folds"] = folds if not len(self.places) else folds.subset(self.places)
        return terms if spec is None else {**terms, "share": spec.share, "unit": spec.unit}
