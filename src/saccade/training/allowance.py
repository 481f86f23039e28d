"""Time budget of a run within a comparison."""

from dataclasses import dataclass
from math import sqrt

DOUBT = 0.5  # relative variation of one epoch's time; decreases with the square root of their number


class DeadlineExceeded(Exception):  # noqa: N818
    """The run will exceed its time budget and has saved its state.

    Attributes:
        epoch_seconds: current duration of an epoch.
    """

    def __init__(self, epoch_seconds: float) -> None:
        super().__init__(f"an epoch takes {epoch_seconds:.3g} s, longer than planned")
        self.epoch_seconds = epoch_seconds


@dataclass(frozen=True)
class Allowance:
    """Deadline of all runs and the planned durations, from which a run estimates whether it is late."""

    until: float  # deadline, by `time.monotonic`
    epoch: float  # planned seconds for an epoch of this run
    rest: float  # planned seconds for the runs after this one, scaled like this run's

    def check(self, *, now: float, second: float, epochs: int, left: int) -> None:
        """Raise `DeadlineExceeded` if the deadline will be missed by more than epochs vary.

        Args:
            second: start of the second epoch; the first one includes compilation.
            epochs: number of finished epochs.
            left: number of epochs to go.
        """
        if epochs > 1:
            epoch = (now - second) / (epochs - 1)
            needed = epoch * (left + self.rest / max(self.epoch, 1e-9))
            if now + needed / (1 + DOUBT / sqrt(epochs - 1)) > self.until:
                raise DeadlineExceeded(epoch)
