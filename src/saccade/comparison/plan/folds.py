"""Cross-validation in a comparison: the runs of a pass over all folds, and their joined predictions."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...data.folds import choose_folds
from ...data.open import Data
from ...runs.run import Run
from ...runs.scores import Scores
from ...runs.weights import save_tensors
from ...settings import ConfigError
from ...statistics.folds import Folds
from ...tasks.metric import GROUP
from ..conclude.evidence import Evidence, read_evidence, refuse_frames

STRIDE = 100_003  # between the seeds of a seed's trainings, so that no two of them draw alike


@dataclass(frozen=True)
class FoldRun:
    """One training of a pass of cross-validation: validated on one fold."""

    cv_pass: int  # seed that stands for the pass
    seed: int  # of the training
    repeat: int  # which cut
    fold: int  # which part is validated on


def fold_runs(seed: int, folds: int | None, repeats: int = 1) -> Iterator[FoldRun]:
    """Yield the runs of a seed: one, or one per fold and repeat."""
    if folds is None:
        yield FoldRun(seed, seed, 0, 0)
        return
    if seed >= STRIDE:
        raise ConfigError(f"seed {seed}: with folds, seeds must be below {STRIDE}")
    for repeat in range(repeats):
        first = seed + STRIDE * repeat * folds
        for fold in range(folds):
            yield FoldRun(first, first + STRIDE * fold, repeat, fold)


@dataclass(frozen=True)
class FoldAssignment:
    """Which fold each sample of a comparison is in."""

    count: int  # of folds
    fold: tuple[np.ndarray, ...]  # of every sample, one array a cut
    groups: np.ndarray | None  # of every sample, P int64; None where each stands for itself
    fingerprint: str  # of all samples

    @classmethod
    def of(cls, data: Data, *, folds: int, repeats: int, seed: int) -> "FoldAssignment":
        """Return the folds that the runs of a comparison choose themselves."""
        assert data.whole is not None
        cuts = [choose_folds(data.whole, data.groups, folds=folds, seed=seed + repeat) for repeat in range(repeats)]
        groups = None if data.groups is None else np.unique(data.groups, return_inverse=True)[1]
        return cls(folds, tuple(cuts), groups, data.whole.fingerprint())

    def folds(self) -> Folds:
        """Return the folds in the form that `statistics` takes."""
        return Folds(self.count, self.fold[0] if len(self.fold) == 1 else None, self.groups)

    def describe(self, *, seeds: int) -> str:
        """Describe the folds, and the intervals that follow from them with the given number of passes."""
        grouped = "" if self.groups is None else f" (in {int(self.groups.max()) + 1} groups, each in one fold)"
        again = f", with {len(self.fold)} different splits" if len(self.fold) > 1 else ""
        more = self.folds().inflation(seeds=seeds) - 1
        how = f"variance between {'seeds' if seeds > 1 else 'folds'} and between samples, increased by {more:.0%}"
        validated = f"validated on all {len(self.fold[0])} samples{grouped}, in {self.count} folds{again}"
        return f"{validated}; intervals: {how} since folds share training sets"

    def held(self, fold_run: FoldRun) -> np.ndarray:
        """Return the indices of a run's validation samples in the whole dataset."""
        return np.flatnonzero(self.fold[fold_run.repeat] == fold_run.fold)

    def join(self, passes: Mapping[int, Sequence[tuple[FoldRun, Path]]]) -> Evidence:
        """Join the runs of each pass, by seed, to one run that validated on all samples."""
        parts = {
            cv_pass: read_evidence({fold_run.fold: path for fold_run, path in runs}) for cv_pass, runs in passes.items()
        }
        refuse_frames((scores.own_frame, "some folds") for part in parts.values() for scores in part.samples.values())
        samples = {
            cv_pass: _join_scores(
                [(self.held(fold_run), parts[cv_pass].samples[fold_run.fold]) for fold_run, _ in runs]
            )
            for cv_pass, runs in passes.items()
        }
        return Evidence(
            runs={cv_pass: runs[0][1] for cv_pass, runs in passes.items()},
            summaries={cv_pass: self._summary(part, samples[cv_pass]) for cv_pass, part in parts.items()},
            records={cv_pass: mean_records(list(part.records.values())) for cv_pass, part in parts.items()},
            samples=samples,
            memory=max((part.memory for part in parts.values() if part.memory is not None), default=None),
            digests={
                cv_pass: hashlib.sha256("".join(part.digests.values()).encode()).hexdigest()
                for cv_pass, part in parts.items()
            },
        )

    def _summary(self, part: Evidence, scores: Scores) -> dict[str, Any]:
        found = _mean_numbers(list(part.summaries.values()))
        found["seconds"] = sum(float(one["seconds"]) for one in part.summaries.values())
        for name, spec in scores.metrics.items():
            if f"val_{name}" in found and spec.column in scores.columns:
                columns = {spec.column: scores.columns[spec.column]}
                if spec.by_group:
                    columns[GROUP] = scores.columns[GROUP]
                found[f"val_{name}"] = spec.combine(columns)
        found["validation"] = {"samples": len(scores.places), "fingerprint": self.fingerprint}
        return found

    def save_answers(self, path: Path, runs: Sequence[tuple[FoldRun, Path]]) -> None:
        """Write the out-of-fold predictions of a pass, in the samples' order."""
        kept = [(self.held(fold_run), Run(run).predictions()) for fold_run, run in runs]
        places = np.concatenate([held[found["place"].numpy()] for held, found in kept])
        order = torch.from_numpy(np.argsort(places, kind="stable"))
        names = set.intersection(*(set(found) for _, found in kept)) - {"place"}
        tensors = {name: torch.cat([found[name] for _, found in kept])[order].contiguous() for name in sorted(names)}
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(path, {"place": torch.from_numpy(places)[order], **tensors})


def _join_scores(parts: Sequence[tuple[np.ndarray, Scores]]) -> Scores:
    """Join the scores of several folds to those of the whole dataset."""
    places = np.concatenate([held[scores.places] for held, scores in parts])
    order = np.argsort(places, kind="stable")
    shared = set.intersection(*(set(scores.columns) for _, scores in parts))
    columns = {name: np.concatenate([scores.columns[name] for _, scores in parts])[order] for name in sorted(shared)}
    names = [name for _, scores in parts for name in scores.names]
    first = parts[0][1]
    metrics = {name: spec for name, spec in first.metrics.items() if spec.column in shared}
    kept = tuple(names[place] for place in order) if len(names) == len(places) else ()
    return Scores(columns, places[order], kept, metrics, first.primary, first.own_frame)


def _mean_numbers(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge records: means of numbers, other values from the first."""
    found = dict(records[0])
    for name, value in found.items():
        values = [record.get(name) for record in records]
        if isinstance(value, float) and all(isinstance(one, int | float) for one in values):
            found[name] = float(np.mean([float(one) for one in values if one is not None]))
    return found


def runs_of_pass(first: Path, seed: int, folds: int) -> list[Path]:
    """Return the existing runs of a pass, one per fold, given the first of them."""
    arm = first.parent.name.rpartition("-")[0]  # a fold's settings have a folder of their own
    return [path for k in range(folds) for path in first.parent.parent.glob(f"{arm}-*/seed-{seed + STRIDE * k}")]


def mean_records(runs: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Merge the epochs of several runs; seconds and steps are summed."""
    found = []
    for epochs in zip(*runs, strict=False):
        record = _mean_numbers(epochs)
        record["seconds"] = sum(float(epoch["seconds"]) for epoch in epochs)
        record["step"] = sum(int(epoch["step"]) for epoch in epochs)
        found.append(record)
    return found
