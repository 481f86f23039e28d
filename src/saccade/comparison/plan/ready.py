"""A plan with its runs, and the evidence of finished ones."""

from dataclasses import dataclass
from pathlib import Path

from ...data.source import Source
from ..conclude.evidence import Evidence, read_evidence
from ..run.folder import is_finished
from ..run.scheduler import Job
from .folds import FoldAssignment, FoldRun
from .plan import Note, Plan
from .request import ComparisonSpec
from .tuned import TunedArms


@dataclass(frozen=True)
class Ready:
    """A plan with its runs."""

    plan: Plan  # what was found
    jobs: tuple[Job, ...]  # every run of every distinct arm, seed by seed, so that a stop leaves whole pairs
    outputs: tuple[str, ...]  # names of the classes, or of what else the models answer with
    validation: Source  # the images that the first seed validates on
    question: ComparisonSpec  # metric, pairing and margin
    notes: tuple[Note, ...] = ()  # for the result
    tuned: TunedArms | None = None  # how the arms' settings were found, if they were sought
    folds: FoldAssignment | None = None

    def finished(self, name: str) -> dict[int, Path]:
        """Return an arm's finished runs by seed; with folds, the first run of every complete pass."""
        if self.folds is not None:
            return {seed: runs[0][1] for seed, runs in self.passes(name).items()}
        own = self.plan.arm(name).identical_to or name
        return {job.seed: job.path for job in self.jobs if job.arm == own and is_finished(job.path)}

    def passes(self, name: str) -> dict[int, list[tuple[FoldRun, Path]]]:
        """Return the runs of an arm's complete passes over all folds, by seed."""
        own = self.plan.arm(name).identical_to or name
        found: dict[int, list[tuple[FoldRun, Path]]] = {}
        for job in self.jobs:
            if job.arm == own and job.fold_run is not None and is_finished(job.path):
                found.setdefault(job.fold_run.cv_pass, []).append((job.fold_run, job.path))
        return {seed: runs for seed, runs in found.items() if self.folds and len(runs) == self.folds.count}

    def evidence(self, name: str) -> Evidence:
        """Return the evidence of an arm's finished runs."""
        return self.folds.join(self.passes(name)) if self.folds is not None else read_evidence(self.finished(name))
