"""What the finished runs of arms say: scores by sample, numbers by seed, and which arms came out exactly alike."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from ...runs.run import Run, RunError
from ...runs.scores import Scores
from ...support.files import read_record
from ...tasks.metric import MetricSpec
from ..plan.plan import Note, Plan
from ..run.worker import COST

NOT_SCORES = {"epochs", "steps", "seconds", "parameters"}
Same = Literal["everything", "training", "answers"]
EFFECTS: dict[Same, tuple[str, str]] = {
    "everything": ("trained exactly like", "had no effect"),
    "training": ("trained exactly like", "had no effect on training"),
    "answers": ("answers exactly like", "had no effect on the weights"),
}


@dataclass(frozen=True)
class Evidence:
    """The finished runs of an arm, by seed; `digests` stand for all that was kept of their answers, to the bit."""

    runs: Mapping[int, Path]
    summaries: Mapping[int, dict[str, Any]]
    records: Mapping[int, list[dict[str, Any]]]
    samples: Mapping[int, Scores]
    memory: int | None
    digests: Mapping[int, str] = field(default_factory=dict)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that finished."""
        return tuple(self.runs)

    @property
    def metrics(self) -> dict[str, MetricSpec]:
        """What the runs' columns mean, by name."""
        return {name: spec for scores in self.samples.values() for name, spec in scores.metrics.items()}

    def has(self, column: str) -> bool:
        """Whether every run scored its samples in a column."""
        return all(column in scores.columns for scores in self.samples.values())

    def fingerprint(self, seed: int) -> str:
        """Return which validation images a run answered."""
        return str(self.summaries[seed]["validation"]["fingerprint"])

    def score(self, metric: str, seed: int) -> float:
        """Return a number that a run ended with."""
        for found in (self.summaries[seed], self.records[seed][-1] if self.records[seed] else {}):
            for name in (metric, f"val_{metric}"):
                if isinstance(found.get(name), int | float) and not isinstance(found[name], bool):
                    return float(found[name])
        raise ValueError(f"metric={metric!r} was given; {self.runs[seed]} ended with {', '.join(self.scores(seed))}")

    def scores(self, seed: int) -> dict[str, float]:
        """Return all scores that a run ended with, without their costs."""
        return {
            name: float(value)
            for name, value in self.summaries[seed].items()
            if isinstance(value, int | float) and not isinstance(value, bool) and name not in NOT_SCORES
        }

    def seconds_per_step(self, seed: int) -> float | None:
        """Return seconds a step, without the first epoch where there are several."""
        records = self.records[seed]
        counted = records[1:] or records
        first = records[0]["step"] if len(records) > 1 else 0
        steps = records[-1]["step"] - first if records else 0
        return sum(record["seconds"] for record in counted) / steps if steps else None

    def curve(self, metric: str, seed: int, *, chance: float | None) -> tuple[np.ndarray, np.ndarray]:
        """Return seconds of training and a metric after each epoch that was validated; `chance` is its value before."""
        seconds, found = 0.0, [] if chance is None else [(0.0, chance)]
        for record, took in zip(self.records[seed], epoch_seconds(self.records[seed]), strict=True):
            seconds += took
            value = record.get(f"val_{metric}")
            found += [(seconds, float(value))] if isinstance(value, int | float) else []
        return np.array([at for at, _ in found]), np.array([value for _, value in found])


def epoch_seconds(records: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return how long a run's epochs took; the first, which may compile, counts as if it had been like the others."""
    seconds = [float(record.get("seconds") or 0.0) for record in records]
    return [min(seconds[0], median(seconds[1:])), *seconds[1:]] if len(seconds) > 1 else seconds


def read_evidence(runs: Mapping[int, Path]) -> Evidence:
    """Read finished runs, by seed."""
    opened = {seed: Run.open(path) for seed, path in runs.items()}
    samples = {seed: run.scores() for seed, run in opened.items()}
    return Evidence(
        runs=dict(runs),
        summaries={seed: run.summary() for seed, run in opened.items()},
        records={seed: run.metrics() for seed, run in opened.items()},
        samples=samples,
        memory=max((m for path in runs.values() if (m := read_record(path / COST).get("peak_memory"))), default=None),
        digests={seed: _digest(run, samples[seed]) for seed, run in opened.items()},
    )


def _digest(run: Run, scores: Scores) -> str:
    """Return what stands for a run's answers to the bit: all that was kept of them, or else their scores."""
    kept: Mapping[str, np.ndarray] = scores.columns
    if run.predictions_file.exists():
        kept = {name: value.numpy() for name, value in run.predictions().items()}
    return hashlib.sha256(b"".join(kept[name].tobytes() for name in sorted(kept))).hexdigest()


def same_samples(arms: Mapping[str, Evidence]) -> bool:
    """Return whether all runs answered the same images; refuse arms of one seed that did not."""
    everywhere = {arm.fingerprint(seed) for arm in arms.values() for seed in arm.seeds}
    for seed in sorted({seed for arm in arms.values() for seed in arm.seeds}):
        found = {name: arm.fingerprint(seed) for name, arm in arms.items() if seed in arm.seeds}
        if len(set(found.values())) > 1:
            answered = ", ".join(f"{name} {digest[:12]}" for name, digest in found.items())
            raise RunError(
                f"the arms validated on different samples with seed {seed}: {answered}; only answers to the same "
                "samples can be compared. The set was changed between runs: begin anew in another folder"
            )
    return len(everywhere) <= 1


def common_places(arms: Mapping[str, Evidence]) -> np.ndarray:
    """Return the samples that every run answered, in order; one that a run could not read is left out."""
    places = [scores.places for arm in arms.values() for scores in arm.samples.values()]
    return np.sort(reduce(np.intersect1d, places)) if places else np.empty(0, np.int64)


def per_sample(arm: Evidence, column: str, seeds: tuple[int, ...], places: np.ndarray) -> np.ndarray:
    """Return the records of an arm in a column, seeds x samples x ..."""
    rows = []
    for seed in seeds:
        scores = arm.samples[seed]
        order = np.argsort(scores.places)
        rows.append(scores.columns[column][order[np.searchsorted(scores.places, places, sorter=order)]])
    return np.stack(rows)


@dataclass(frozen=True)
class Unaffected:
    """An arm that came out like another one to the bit, though their settings differ."""

    arm: str  # its name
    like: str  # name of the other
    seeds: tuple[int, ...]  # with which it did
    same: Same  # "training", the losses of all epochs; "answers" to all validation images; or "everything"

    @property
    def note(self) -> Note:
        """What is to be said of it."""
        did, effect = EFFECTS[self.same]
        seeds = f"seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"
        message = f"{self.arm} {did} {self.like} with {seeds}: what it changes {effect} there"
        return Note("unaffected", message, "check that the arm does what it says", self.arm)


def find_unaffected(plan: Plan, arms: Mapping[str, Evidence]) -> tuple[Unaffected, ...]:
    """Return the arms of different settings whose runs of one seed are the same, each with the first it is like.

    Args:
        plan: whose arms they are; those of identical settings share their runs and are not meant.
    """
    distinct = [arm.name for arm in plan.arms if arm.identical_to is None]
    distinct.sort(key=lambda name: name != plan.reference)
    found: dict[tuple[str, str, Same], list[int]] = {}
    for number, name in enumerate(distinct):
        for seed in arms[name].seeds:
            for other in distinct[:number]:
                same = _compare(arms[other], arms[name], seed, kept_only=_differ_in_keeping(plan, other, name))
                if same is not None:
                    found.setdefault((name, other, same), []).append(seed)
                    break
    return tuple(Unaffected(name, other, tuple(seeds), same) for (name, other, same), seeds in found.items())


def _compare(first: Evidence, second: Evidence, seed: int, *, kept_only: bool) -> Same | None:
    """Return what is the same in two runs of one seed.

    Losses alone say too little of a single epoch, in which a step may come before anything has changed, and of arms
    that differ in what is kept, such as averaged weights, which are taken from the same training.
    """
    if seed not in first.seeds:
        return None
    losses = [[record.get("train_loss") for record in arm.records[seed]] for arm in (first, second)]
    trained = bool(losses[0]) and None not in losses[0] and losses[0] == losses[1]
    if first.digests[seed] == second.digests[seed]:
        return "everything" if trained else "answers"
    return "training" if trained and len(losses[0]) > 1 and not kept_only else None


def _differ_in_keeping(plan: Plan, first: str, second: str) -> bool:
    """Whether two arms differ only in what is kept of a training."""
    one, two = plan.arm(first).changes, plan.arm(second).changes
    return all(name.startswith("keep.") for name in {**one, **two} if one.get(name) != two.get(name))
