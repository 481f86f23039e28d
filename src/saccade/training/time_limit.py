"""The time that a run was given: whether it will end within it, and how many steps there is time for if not."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

WINDOW = 1 / 16  # of the time that is left, over which steps are timed
COARSE = 1 / 4  # of the time that is left: where timing takes longer, nothing is timed again before it is believed
RESERVE = 0.02  # of the whole time, that a shortened run leaves free, for what may come
SPARE = 0.03  # of the time that is left, likewise
SHORTEST = 0.02  # of the steps trained, that a decay takes at least while there is time for it
RECENT = 5  # validations that the next ones are judged by


@dataclass
class TimeLimit:
    """Times the steps of a run and says when there is no time for all of them.

    Steps are timed in windows, whose length goes with the time that is left. A run is shortened when two of them in a
    row say that it will end too late: the first may have been a pause, and may have begun before the machine became
    slower. A shortened run leaves some time free, so that small changes do not shorten it again. It is never made
    longer.
    """

    until: float  # when the last validation has to have ended, by the run's clock
    started: float  # when training began
    first_guess: float  # of how many steps a validation takes as long as
    window: tuple[int, float] | None = None  # the step and the time that the present window began with
    late: bool = False  # what the window before said
    pace: float = 0.0  # seconds a step, over the last window
    validations: list[float] = field(default_factory=list)  # how long the last ones took, in steps

    def validated(self, seconds: float, *, now: float, step: int) -> None:
        """Take note of a validation that has just ended; it is no part of the time of steps."""
        if self.window is None:
            return
        first, since = self.window
        self.window = first, since + seconds
        pace = (now - since - seconds) / (step - first) if step > first else self.pace
        if pace > 0:
            self.validations = [*self.validations[1 - RECENT :], seconds / pace]

    def steps_left(self, *, now: float, step: int, total: int, validations: Callable[[int], int]) -> int | None:
        """Return how many steps there is time for; None as long as the run is believed to end in time.

        Args:
            validations: how many are left if the run ends after a given number of steps.
        """
        if self.window is None:  # the first steps compile
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
            pace = min(pace, before)  # it may have been a pause; there is no time to see
        if needed(left) <= room:
            return None
        self.late = not known
        steps = _most(needed, room - RESERVE * (self.until - self.started) - SPARE * room, left)
        shortest = max(int(SHORTEST * step), 1)
        if steps < shortest:
            steps = min(max(_most(needed, room, left), 1), shortest)
        return steps if steps < left else None


def _most(needed: Callable[[int], float], seconds: float, most: int) -> int:
    """Return how many steps, `most` at most, there is time for."""
    fitting, beyond = 0, most + 1
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        fitting, beyond = (middle, beyond) if needed(middle) <= seconds else (fitting, middle)
    return fitting


def whole_epochs(step: int, left: int, steps: int, *, share: float = 0.1) -> int:
    """Return how many of the steps that are left to take, lest the last epoch be cut, where that costs few of them."""
    cut = (step + left) % steps
    return left - cut if cut <= share * left and cut < left else left
