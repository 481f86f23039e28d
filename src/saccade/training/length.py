"""How many steps a run has, and where on its schedule each of them stands: shortened where its time would run out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..support.wording import count_of

OPENING = 5  # a shortened run has at most one part in so many for its warm-up, as `rate_at` gives a short one


@dataclass(frozen=True)
class RunLength:
    """The steps of a run.

    The schedule is that of the run as planned. A run that was shortened passes over it faster from some step on, and
    its last step stands where the last one planned would have stood. Whatever depends on how far a run is (learning
    rate, augmentation of the last epochs, weights of losses by epoch) asks for a step's place.
    """

    planned: int  # steps of the schedule
    steps: int  # of an epoch
    total: int  # steps that are trained
    pieces: tuple[tuple[int, float, float], ...] = ()  # from which step on, its place, and places a step

    @classmethod
    def of(cls, epochs: int, steps: int) -> "RunLength":
        """Return the length of a run as planned."""
        return cls(epochs * steps, steps, epochs * steps)

    def __str__(self) -> str:
        if self.total % self.steps:
            return f"{count_of(self.total, 'step')} ({self.total / self.steps:.1f} epochs)"
        return count_of(self.epochs, "epoch")

    @property
    def epochs(self) -> int:
        """How many epochs there are; the last of a shortened run may have fewer steps than the others."""
        return -(-self.total // self.steps)

    def epoch_of(self, step: int) -> int:
        """Return the epoch of a step, counted from 1 as people do."""
        return step // self.steps + 1

    def end_of(self, epoch: int) -> int:
        """Return the step after the last one of an epoch, counted from 0."""
        return min((epoch + 1) * self.steps, self.total)

    def place(self, step: int) -> float:
        """Return the step of the schedule as planned at which a step stands; itself, unless the run was shortened."""
        beyond = step - (self.total - 1)
        if beyond >= 0:
            return self.planned - 1 + beyond
        for first, place, pace in reversed(self.pieces):
            if step >= first:
                return place + pace * (step - first)
        return step

    def epoch_at(self, step: int) -> float:
        """Return the place of a step in epochs; a whole number stays one."""
        place = self.place(step)
        return place / self.steps if place % self.steps else int(place // self.steps)

    def shortened(self, step: int, left: int, *, warmup: int) -> "RunLength":
        """Return the length of a run that trains `left` steps from a step on; places of earlier ones stay.

        Args:
            warmup: places of the warm-up. What is left of it goes on as it was, but for a fifth of the run at most.
        """
        here, last = self.place(step), self.planned - 1
        total = step + left
        before = tuple(piece for piece in self.pieces if piece[0] < step)
        rise = min(round(warmup - here), max(total // OPENING - step, 1))
        if 0 < rise < left - 1:
            before += ((step, here, (warmup - here) / rise),)
            step, left, here = step + rise, left - rise, warmup
        return replace(self, total=total, pieces=(*before, (step, here, (last - here) / max(left - 1, 1))))

    def was_shortened(self, step: int) -> bool:
        """Whether the run was shortened before a step."""
        return bool(self.pieces) and self.pieces[0][0] < step

    @property
    def remark(self) -> str:
        """What to say beside the number of epochs of a run that was shortened."""
        if not self.pieces:
            return ""
        planned = f"{count_of(self.planned // self.steps, 'epoch')}, {count_of(self.planned, 'step')}"
        return f" (the machine became slower; planned were {planned})"

    def summary(self) -> dict[str, Any]:
        """Return what a run's summary says of its having been shortened."""
        if not self.pieces:
            return {}
        first = self.pieces[0][0]
        planned = {"planned_epochs": self.planned // self.steps, "planned_steps": self.planned}
        return {"shortened": {**planned, "from_epoch": self.epoch_of(first), "from_step": first}}

    def record(self) -> dict[str, Any]:
        """Return what a state keeps."""
        return {"total": self.total, "pieces": [list(piece) for piece in self.pieces]}

    def restored(self, record: Mapping[str, Any]) -> "RunLength":
        """Return the length that a state kept; one of an earlier version kept none, since no run was shortened."""
        pieces = tuple((int(first), float(place), float(pace)) for first, place, pace in record.get("pieces", ()))
        return replace(self, total=int(record.get("total", self.total)), pieces=pieces)
