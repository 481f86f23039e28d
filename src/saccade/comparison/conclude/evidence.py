"""Read the finished runs of arms: scores by sample, metrics by seed; find arms with identical results."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from ...runs.run import Run, RunError
from ...runs.scores import Scores
from ...runs.state import StateError, load_state
from ...support.files import read_record
from ...tasks.metric import MetricSpec
from ..plan.plan import Note, Plan
from ..run.folder import is_finished
from ..run.worker import COST

NOT_SCORES = {"epochs", "steps", "seconds", "parameters"}
Same = Literal["everything", "training", "answers"]
EFFECTS: dict[Same, tuple[str, str]] = {
    "everything": ("trained exactly like", "had no effect"),
    "training": ("trained exactly like", "had no effect on training"),
    "answers": ("makes exactly the same predictions as", "had no effect on the weights"),
}


@dataclass(frozen=True)
class Evidence:
    """The finished runs of an arm, by seed; `digests` are hashes of their predictions."""

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
        """The metrics' specifications by name."""
        return {name: spec for scores in self.samples.values() for name, spec in scores.metrics.items()}

    def has(self, column: str) -> bool:
        """Whether every run has a column of sample scores."""
        return all(column in scores.columns for scores in self.samples.values())

    def fingerprint(self, seed: int) -> str:
        """Return the fingerprint of a run's validation images."""
        return str(self.summaries[seed]["validation"]["fingerprint"])

    def score(self, metric: str, seed: int) -> float:
        """Return a final metric of a run."""
        for found in (self.summaries[seed], self.records[seed][-1] if self.records[seed] else {}):
            for name in (metric, f"val_{metric}"):
                if isinstance(found.get(name), int | float) and not isinstance(found[name], bool):
                    return float(found[name])
        raise ValueError(f"metric={metric!r}: {self.runs[seed]} reports only {', '.join(self.scores(seed))}")

    def scores(self, seed: int) -> dict[str, float]:
        """Return all final metrics of a run, except costs."""
        return {
            name: float(value)
            for name, value in self.summaries[seed].items()
            if isinstance(value, int | float) and not isinstance(value, bool) and name not in NOT_SCORES
        }

    def seconds_per_step(self, seed: int) -> float | None:
        """Return seconds a step, without the first epoch if there are several."""
        records = self.records[seed]
        counted = records[1:] or records
        first = records[0]["step"] if len(records) > 1 else 0
        steps = records[-1]["step"] - first if records else 0
        return sum(record["seconds"] for record in counted) / steps if steps else None

    def curve(self, metric: str, seed: int, *, chance: float | None) -> tuple[np.ndarray, np.ndarray]:
        """Return training seconds and a metric after each validated epoch; `chance` is its initial value."""
        seconds, found = 0.0, [] if chance is None else [(0.0, chance)]
        for record, took in zip(self.records[seed], epoch_seconds(self.records[seed]), strict=True):
            seconds += took
            value = record.get(f"val_{metric}")
            found += [(seconds, float(value))] if isinstance(value, int | float) else []
        return np.array([at for at, _ in found]), np.array([value for _, value in found])


def epoch_seconds(records: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the durations of a run's epochs; the first, which may include compilation, is made typical."""
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
    """Return a hash of a run's predictions, or else of its scores."""
    kept: Mapping[str, np.ndarray] = scores.columns
    if run.predictions_file.exists():
        kept = {name: value.numpy() for name, value in run.predictions().items()}
    return hashlib.sha256(b"".join(kept[name].tobytes() for name in sorted(kept))).hexdigest()


def same_samples(arms: Mapping[str, Evidence]) -> bool:
    """Return whether all runs have the same validation images; refuse if they differ between arms of one seed.

    Runs that count in different frames are refused too.
    """
    refuse_frames((scores.own_frame, name) for name, arm in arms.items() for scores in arm.samples.values())
    everywhere = {arm.fingerprint(seed) for arm in arms.values() for seed in arm.seeds}
    for seed in sorted({seed for arm in arms.values() for seed in arm.seeds}):
        found = {name: arm.fingerprint(seed) for name, arm in arms.items() if seed in arm.seeds}
        if len(set(found.values())) > 1:
            answered = ", ".join(f"{name} {digest[:12]}" for name, digest in found.items())
            raise RunError(
                f"the arms were validated on different samples for seed {seed}: {answered}; only predictions on the "
                "same samples can be compared. The dataset changed between runs: start again in another directory"
            )
    return len(everywhere) <= 1


def refuse_frames(counted: Iterable[tuple[bool, str]]) -> None:
    """Refuse runs that count in different frames: whether each does in the images' own, and its arm."""
    frames = dict(counted)
    if len(frames) > 1:
        raise RunError(
            f"runs of {frames[False]} count pixels of the model's square, as earlier versions did, and those of "
            f"{frames[True]} pixels of the original images; only runs of one version can be compared: start again in "
            "another directory"
        )


def refuse_frames_of(runs: Mapping[Path, tuple[str, bool]]) -> None:
    """Refuse to train runs that would count in another frame than finished ones.

    Args:
        runs: the arm of each run, by path, and whether a new run of it counts in the images' own pixels.
    """
    refuse_frames((_own_frame_of(Run(path)), arm) for path, (arm, own) in runs.items() if own)


def _own_frame_of(run: Run) -> bool:
    """Whether a run counts in the images' own pixels, or will: one that was begun before goes on in its frame."""
    if is_finished(run.path):
        return run.scores().own_frame
    try:
        record = load_state(run.states).record
    except StateError:  # the run says so itself
        return True
    return not record or "extra.frame" in record["data"].get("spec", {})


def common_places(arms: Mapping[str, Evidence]) -> np.ndarray:
    """Return the indices of samples that every run could read."""
    places = [scores.places for arm in arms.values() for scores in arm.samples.values()]
    return np.sort(reduce(np.intersect1d, places)) if places else np.empty(0, np.int64)


def per_sample(arm: Evidence, column: str, seeds: tuple[int, ...], places: np.ndarray) -> np.ndarray:
    """Return an arm's records of a column, seeds x samples x ..."""
    rows = []
    for seed in seeds:
        scores = arm.samples[seed]
        order = np.argsort(scores.places)
        rows.append(scores.columns[column][order[np.searchsorted(scores.places, places, sorter=order)]])
    return np.stack(rows)


@dataclass(frozen=True)
class Unaffected:
    """An arm with bit-identical results to another one, although their settings differ."""

    arm: str  # name of the arm
    like: str  # name of the other
    seeds: tuple[int, ...]  # seeds with identical results
    same: Same  # what is identical: "training" (all losses), "answers" (all predictions) or "everything"

    @property
    def note(self) -> Note:
        """The note for the reader."""
        did, effect = EFFECTS[self.same]
        seeds = f"seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"
        message = f"{self.arm} {did} {self.like} for {seeds}: its changes {effect} there"
        return Note("unaffected", message, "check that the arm changes what it is meant to change", self.arm)


def find_unaffected(plan: Plan, arms: Mapping[str, Evidence]) -> tuple[Unaffected, ...]:
    """Return arms with different settings but identical runs, each with the first arm that it equals.

    Args:
        plan: plan of the comparison; arms with identical settings share their runs and are excluded.
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
    """Return what is identical in two runs of one seed.

    Equal losses are not sufficient for a single epoch, or for arms that only differ in what is kept, such as averaged
    weights.
    """
    if seed not in first.seeds:
        return None
    losses = [[record.get("train_loss") for record in arm.records[seed]] for arm in (first, second)]
    trained = bool(losses[0]) and None not in losses[0] and losses[0] == losses[1]
    if first.digests[seed] == second.digests[seed]:
        return "everything" if trained else "answers"
    return "training" if trained and len(losses[0]) > 1 and not kept_only else None


def _differ_in_keeping(plan: Plan, first: str, second: str) -> bool:
    """Whether two arms only differ in `keep` settings."""
    one, two = plan.arm(first).changes, plan.arm(second).changes
    return all(name.startswith("keep.") for name in {**one, **two} if one.get(name) != two.get(name))
