"""Number of steps of a run, and the schedule position of each step, also when shortened by a time budget."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..support.wording import count_of

OPENING = 5  # a shortened run warms up over at most 1 / OPENING of it, as in `warmup_of`, or the planned share


@dataclass(frozen=True)
class RunLength:
    """The steps of a run.

    The schedule is that of the planned run. A shortened run advances along it faster from some step on, and ends where
    the planned run would. Everything that depends on progress (learning rate, augmentation of the last epochs, loss
    weights by epoch) uses a step's `place` on the schedule.
    """

    planned: int  # steps of the planned run
    steps: int  # steps of an epoch
    total: int  # steps to train
    pieces: tuple[tuple[int, float, float], ...] = ()  # first step, its place, and places per step

    @classmethod
    def of(cls, epochs: int, steps: int) -> "RunLength":
        """Return the length of a planned run."""
        return cls(epochs * steps, steps, epochs * steps)

    def __str__(self) -> str:
        if self.total % self.steps:
            return f"{count_of(self.total, 'step')} ({self.total / self.steps:.1f} epochs)"
        return count_of(self.epochs, "epoch")

    @property
    def epochs(self) -> int:
        """Number of epochs; the last of a shortened run may be incomplete."""
        return -(-self.total // self.steps)

    def epoch_of(self, step: int) -> int:
        """Return the epoch of a step, counted from 1."""
        return step // self.steps + 1

    def end_of(self, epoch: int) -> int:
        """Return the step after the last one of an epoch (counted from 0)."""
        return min((epoch + 1) * self.steps, self.total)

    def place(self, step: int) -> float:
        """Return the position of a step on the planned schedule; the step itself, unless the run was shortened."""
        beyond = step - (self.total - 1)
        if beyond >= 0:
            return self.planned - 1 + beyond
        for first, place, pace in reversed(self.pieces):
            if step >= first:
                return place + pace * (step - first)
        return step

    def epoch_at(self, step: int) -> float:
        """Return the position of a step in epochs; an integer where it is one."""
        place = self.place(step)
        return place / self.steps if place % self.steps else int(place // self.steps)

    def shortened(self, step: int, left: int, *, warmup: int) -> "RunLength":
        """Return the length of a run that trains only `left` steps after `step`.

        Args:
            warmup: steps of the planned warm-up. Its rest keeps its pace, but takes at most a fifth of the run, or
                the planned share where that is larger.
        """
        here, last = self.place(step), self.planned - 1
        total = step + left
        before = tuple(piece for piece in self.pieces if piece[0] < step)
        most = max(total // OPENING, int(total * warmup / self.planned))
        rise = min(round(warmup - here), max(most - step, 1))
        if 0 < rise < left - 1:
            before += ((step, here, (warmup - here) / rise),)
            step, left, here = step + rise, left - rise, warmup
        return replace(self, total=total, pieces=(*before, (step, here, (last - here) / max(left - 1, 1))))

    def was_shortened(self, step: int) -> bool:
        """Whether the run was shortened before a step."""
        return bool(self.pieces) and self.pieces[0][0] < step

    @property
    def remark(self) -> str:
        """Remark on the number of epochs of a shortened run."""
        if not self.pieces:
            return ""
        planned = f"{count_of(self.planned // self.steps, 'epoch')}, {count_of(self.planned, 'step')}"
        return f" (the machine became slower; planned were {planned})"

    def summary(self) -> dict[str, Any]:
        """Return the entries of a shortened run's summary."""
        if not self.pieces:
            return {}
        first = self.pieces[0][0]
        planned = {"planned_epochs": self.planned // self.steps, "planned_steps": self.planned}
        return {"shortened": {**planned, "from_epoch": self.epoch_of(first), "from_step": first}}

    def record(self) -> dict[str, Any]:
        """Return the values saved in the state."""
        return {"total": self.total, "pieces": [list(piece) for piece in self.pieces]}

    def restored(self, record: Mapping[str, Any]) -> "RunLength":
        """Return the length saved in a state; states of earlier versions have none."""
        pieces = tuple((int(first), float(place), float(pace)) for first, place, pace in record.get("pieces", ()))
        return replace(self, total=int(record.get("total", self.total)), pieces=pieces)
