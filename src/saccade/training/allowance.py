"""The time that a run among others has, seen from within it."""

from dataclasses import dataclass
from math import sqrt

DOUBT = 0.5  # of what one epoch says of the next ones; less with the root of their number


class DeadlineExceeded(Exception):  # noqa: N818
    """The run will not end in time and has saved its state.

    Attributes:
        epoch_seconds: that an epoch takes now.
    """

    def __init__(self, epoch_seconds: float) -> None:
        super().__init__(f"an epoch takes {epoch_seconds:.3g} s, longer than planned")
        self.epoch_seconds = epoch_seconds


@dataclass(frozen=True)
class Allowance:
    """When all has to be over, and what was planned, so that a run can tell whether it still will be."""

    until: float  # on the monotonic clock
    epoch: float  # seconds that one of this run's epochs was planned to take
    rest: float  # seconds that was planned for what comes after this run; it gets slower as this run does

    def check(self, *, now: float, second: float, epochs: int, left: int) -> None:
        """Raise `DeadlineExceeded` if time will be short, beyond what epochs differ by chance.

        Args:
            second: when the second of the epochs began; the first one compiles.
            epochs: that have ended.
            left: that have not.
        """
        if epochs > 1:
            epoch = (now - second) / (epochs - 1)
            needed = epoch * (left + self.rest / max(self.epoch, 1e-9))
            if now + needed / (1 + DOUBT / sqrt(epochs - 1)) > self.until:
                raise DeadlineExceeded(epoch)
