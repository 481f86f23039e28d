"""A plan that is ready to be run: its runs, and what those that have ended say."""

from dataclasses import dataclass
from pathlib import Path

from ...data.source import Source
from ..conclude.evidence import Evidence, read_evidence
from ..run.clock import Job
from ..run.folder import is_finished
from .cut import Cut, Piece
from .plan import Note, Plan
from .request import Question
from .tuned import TunedArms


@dataclass(frozen=True)
class Ready:
    """A plan with its runs."""

    plan: Plan  # what was found
    jobs: tuple[Job, ...]  # every run of every distinct arm, seed by seed, so that a stop leaves whole pairs
    outputs: tuple[str, ...]  # names of the classes, or of what else the models answer with
    validation: Source  # the images that the first seed validates on
    question: Question  # what is asked of the runs
    notes: tuple[Note, ...] = ()  # for the result
    tuned: TunedArms | None = None  # how the arms' settings were found, if they were sought
    cut: Cut | None = None

    def finished(self, name: str) -> dict[int, Path]:
        """Return the finished runs of an arm by seed; of folds, the first run of every pass that is whole."""
        if self.cut is not None:
            return {seed: runs[0][1] for seed, runs in self.passes(name).items()}
        own = self.plan.arm(name).identical_to or name
        return {job.seed: job.path for job in self.jobs if job.arm == own and is_finished(job.path)}

    def passes(self, name: str) -> dict[int, list[tuple[Piece, Path]]]:
        """Return the runs of an arm's passes over all folds, by seed, of those that are finished in every fold."""
        own = self.plan.arm(name).identical_to or name
        found: dict[int, list[tuple[Piece, Path]]] = {}
        for job in self.jobs:
            if job.arm == own and job.piece is not None and is_finished(job.path):
                found.setdefault(job.piece.whole, []).append((job.piece, job.path))
        return {seed: runs for seed, runs in found.items() if self.cut and len(runs) == self.cut.count}

    def evidence(self, name: str) -> Evidence:
        """Return what the finished runs of an arm say."""
        return self.cut.join(self.passes(name)) if self.cut is not None else read_evidence(self.finished(name))
