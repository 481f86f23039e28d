"""Time budget of a run: estimates whether it will be met, and how many steps fit if not."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

WINDOW = 1 / 16  # length of a timing window, relative to the remaining time
COARSE = 1 / 4  # if a window takes longer, relative to the remaining time, it is not confirmed by a second one
RESERVE = 0.02  # share of the whole time that a shortened run leaves free
SPARE = 0.03  # likewise, share of the remaining time
SHORTEST = 0.02  # least length of the decay, relative to the steps trained
RECENT = 5  # validations from which the next ones are estimated


@dataclass
class TimeLimit:
    """Times the steps of a run and detects when not all of them fit into the budget.

    Steps are timed in windows whose length is proportional to the remaining time. A run is shortened when two
    consecutive windows predict that it ends too late, since a single one may contain a pause. A shortened run leaves
    some time free, so that small changes do not shorten it again. It is never extended.
    """

    until: float  # deadline of the last validation, by the run's clock
    started: float  # start of training
    first_guess: float  # estimated duration of a validation in steps
    window: tuple[int, float] | None = None  # first step and start time of the current window
    late: bool = False  # whether the previous window predicted a late end
    pace: float = 0.0  # seconds a step in the last window
    validations: list[float] = field(default_factory=list)  # durations of the last ones, in steps

    def validated(self, seconds: float, *, now: float, step: int) -> None:
        """Record a validation; its time does not count for steps."""
        if self.window is None:
            return
        first, since = self.window
        self.window = first, since + seconds
        pace = (now - since - seconds) / (step - first) if step > first else self.pace
        if pace > 0:
            self.validations = [*self.validations[1 - RECENT :], seconds / pace]

    def steps_left(self, *, now: float, step: int, total: int, validations: Callable[[int], int]) -> int | None:
        """Return the number of steps that fit into the budget; None as long as the run is expected to end in time.

        Args:
            validations: returns the number of remaining validations of a run that ends after a given step.
        """
        if self.window is None:  # the first steps include compilation
            self.window = step, now
            return None
        (first, since), room, left = self.window, self.until - now, total - step
        took = now - since
        if step == first or left <= 0 or took < WINDOW * room:
            return None
        pace = took / (step - first)
        before, self.pace, self.window = self.pace or pace, pace, (step, now)
        each = median(self.validations) if self.validations else self.first_guess

        def needed(steps: int) -> float:
            return pace * (steps + each * validations(step + steps))

        known, self.late = self.late, needed(left) > room
        if self.late and not known:
            if took < COARSE * room:
                return None
            pace = min(pace, before)  # this may have been a pause, but there is no time to check
        if needed(left) <= room:
            return None
        self.late = not known
        steps = _most(needed, room - RESERVE * (self.until - self.started) - SPARE * room, left)
        shortest = max(int(SHORTEST * step), 1)
        if steps < shortest:
            steps = min(max(_most(needed, room, left), 1), shortest)
        return steps if steps < left else None


def _most(needed: Callable[[int], float], seconds: float, most: int) -> int:
    """Return the number of steps, at most `most`, that fit."""
    fitting, beyond = 0, most + 1
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        fitting, beyond = (middle, beyond) if needed(middle) <= seconds else (fitting, middle)
    return fitting


def whole_epochs(step: int, left: int, steps: int, *, share: float = 0.1) -> int:
    """Round the remaining steps down to whole epochs, if that costs few steps."""
    cut = (step + left) % steps
    return left - cut if cut <= share * left and cut < left else left
