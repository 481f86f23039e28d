"""What there is still time for: the runs of a comparison, shortened alike or left out when they take longer."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...runs.run import Run
from ...settings import TrainConfig
from ...settings.decisions import Decision
from ...support.wording import count_of
from ...training.allowance import Allowance
from ...training.pace import Pace
from ..conclude.evidence import epoch_seconds
from ..plan.budget import FLOOR, LEAST_SEEDS, makespan
from ..plan.cut import STRIDE, Piece
from .worker import Outcome

SLACK = 0.02  # of the time of all runs, by which they may be late before anything is changed
MORE_SLACK = 0.03  # likewise, before runs of a seed that has begun are thrown away
AMONG = 0.5  # share of the epochs of finished seeds that another one is to have at least; else it is left out
MOST_AGAIN = 3  # times that a run is begun anew for being late


@dataclass(frozen=True)
class Job:
    """One run: an arm with a seed."""

    arm: str
    seed: int
    config: TrainConfig
    path: Path
    piece: Piece | None = None  # of a pass over folds
    record: tuple[Decision, ...] = ()  # who decided its settings so far

    @property
    def whole(self) -> int:
        """The seed whose runs stand or fall together: its own, or that of its pass over folds."""
        return self.seed if self.piece is None else self.piece.whole

    @property
    def epochs(self) -> int:
        """That it is trained for."""
        return self.config.schedule.epochs

    def __str__(self) -> str:
        if self.piece is None:
            return f"{self.arm}, seed {self.seed}"
        cut = f" of cut {self.piece.repeat + 1}" if self.piece.repeat else ""
        return f"{self.arm}, seed {self.piece.whole % STRIDE}, fold {self.piece.fold + 1}{cut}"


@dataclass(frozen=True)
class Limits:
    """What the runs of a comparison are held to."""

    until: float | None = None  # when all have to have ended, on the monotonic clock; None: they take what they take
    paces: Mapping[str, Pace] | None = None  # that were planned with, by arm
    shorten: Callable[[Job, float], Job] | None = None  # gives a run a share of its epochs, and writes that down
    least: int = 2  # seeds that are run whatever the time
    done: int = 0  # seeds that were finished before
    fixed: frozenset[int] = frozenset()  # seeds of which some runs were, so that the others keep their epochs


class Clock:
    """Gives out runs in their order, as many and as long as there is time for.

    Before a seed begins, and when a run says that it is late, the runs that are left are fitted to the time anew, by
    how much longer than planned the last run took: first seeds are left out, down to three in all, then epochs of all
    arms alike, then seeds down to the least. All runs of a seed have the same share of their epochs: where a seed
    cannot be ended with the share it began with, all of its runs begin anew with a smaller one, or it is left out.
    """

    def __init__(
        self, jobs: Sequence[Job], limits: Limits | None = None, slots: int = 1, now: Callable[[], float] | None = None
    ) -> None:
        self.limits, self.slots, self.now = limits or Limits(), max(slots, 1), now or time.monotonic
        self.whole: dict[int, list[Job]] = {}
        for job in jobs:
            self.whole.setdefault(job.whole, []).append(job)
        self.waiting = deque(self.whole)
        self.present: deque[Job] = deque()  # of the seed that has begun
        self.share = self.first = 1.0  # of the epochs planned, that runs have now, and those of the first seed
        self.slower, self.ended, self.again = 1.0, 0, 0
        self.news: list[str] = []  # what was changed, in words
        self.time = 0.0 if self.limits.until is None else max(self.limits.until - self.now(), 0.0)

    def next(self) -> Job | None:
        """Return the next run; None when there are no more, or no time for them."""
        if self.present and self.slots == 1 and not self._fits(list(self.present), slack=MORE_SLACK):
            self._begin_again(self.present[0].whole)
        if not self.present:
            self._refit()
            if not self.waiting:
                return None
            self.first = self.first if self._before() else self.share
            self.present.extend(self.whole[self.waiting.popleft()])
        return self.present.popleft()

    def end(self, job: Job, outcome: Outcome, took: float) -> None:
        """Take note of how a run ended; one that is late is given out again, as it is or with fewer epochs."""
        pace = self._pace(job.arm)
        if outcome.kind == "late":
            if pace is not None and outcome.epoch_seconds:
                self.slower = outcome.epoch_seconds / _epoch(pace, job.epochs)
            if not self._begin_again(job.whole):
                self.again = MOST_AGAIN
                self.present.appendleft(job)
            return
        self.ended += 1
        if pace is not None and outcome.kind == "finished":
            slower = _without_first(took, job.path) / pace.seconds(job.epochs)
            self.slower = slower if self.ended == 1 else (self.slower + slower) / 2

    @property
    def left(self) -> int:
        """How many runs there are to be given out."""
        return len(self.present) + sum(len(self.whole[whole]) for whole in self.waiting)

    def allowance(self, job: Job) -> Allowance | None:
        """Return what a run that was given out has to know of the time; None where it may take what it takes."""
        pace, until = self._pace(job.arm), self.limits.until
        if until is None or pace is None or self.slots > 1 or self.again >= MOST_AGAIN:
            return None
        rest = sum(map(self._planned, self.present))
        after = [sum(map(self._planned, self.whole[whole])) for whole in self.waiting]
        if not self.ended:  # nothing is lost yet if all of them are shortened
            return Allowance(until + SLACK * self.time, _epoch(pace, job.epochs), rest + sum(after))
        needed = max(self.limits.least - self._before(), 0)  # others can be shortened, or left out
        rest += AMONG * sum(after[:needed])
        return Allowance(until + MORE_SLACK * self.time, _epoch(pace, job.epochs), rest)

    def _before(self) -> int:
        """Return how many seeds have begun."""
        return self.limits.done + len(self.whole) - len(self.waiting)

    def _refit(self) -> None:
        """Leave out and shorten what is waiting, if it does not fit."""
        if self.waiting:
            self._take(*self._choose(list(self.waiting), self._before()))

    def _begin_again(self, whole: int) -> bool:
        """Begin the runs of a seed anew with fewer epochs, or leave it out, and say so; False if nothing is gained."""
        before = self._before() - 1
        count, share = self._choose([whole, *self.waiting], before)
        if before >= self.limits.least and share < 1.0:
            count = 0
        same = share == 1.0 or self.limits.shorten is None or whole in self.limits.fixed
        if self.again >= MOST_AGAIN or (count and same):
            return False
        self.again += 1
        self.present.clear()
        self.waiting.appendleft(whole)
        self._take(count, share)
        return True

    def _take(self, count: int, share: float) -> None:
        """Keep so many of the seeds that are waiting, with a share of their epochs."""
        left = []
        while len(self.waiting) > count:
            left.append(self.waiting.pop())
            del self.whole[left[-1]]
        if left:
            self.news.append(f"runs are slower than planned: no time for {said_seeds(sorted(left))}")
        if share < 1.0 and self.waiting and self.limits.shorten is not None:
            self.share *= share
            short = [whole for whole in self.waiting if whole not in self.limits.fixed]
            for whole in short:
                self.whole[whole] = [self.limits.shorten(job, share) for job in self.whole[whole]]
            if short:
                epochs = count_of(max(job.epochs for job in self.whole[short[0]]), "epoch")
                self.news.append(f"runs are slower than planned: {epochs} for {said_seeds(short)}")

    def _choose(self, left: Sequence[int], before: int) -> tuple[int, float]:
        """Return how many of the seeds that are left fit, and with which share of the epochs they have now."""
        if self._fits([job for whole in left for job in self.whole[whole]], slack=SLACK):
            return len(left), 1.0
        longest = max(job.epochs for whole in left for job in self.whole[whole])
        must = max(min(self.limits.least, before + len(left)) - before, 0)
        least = max(min(LEAST_SEEDS, before + len(left)) - before, must)
        floor = max(round((AMONG * self.first if before else FLOOR) / self.share * longest), 1)
        tries = [(count, longest) for count in range(len(left) - 1, least - 1, -1)]
        tries += [(least, epochs) for epochs in range(longest - 1, floor - 1, -1)]
        tries += [(must, epochs) for epochs in range(longest, 0, -1)]
        for count, epochs in tries:
            jobs = [job for whole in left[:count] for job in self.whole[whole]]
            if self._fits(jobs, epochs / longest, slack=-SLACK):  # what got slower may get slower yet
                return count, epochs / longest
        return must, 1 / longest

    def _fits(self, jobs: Sequence[Job], share: float = 1.0, *, slack: float) -> bool:
        if self.limits.until is None or not self.limits.paces:
            return True
        needed = makespan([self.slower * self._planned(job, share) for job in jobs], self.slots)
        return self.now() + needed <= self.limits.until + slack * self.time

    def _planned(self, job: Job, share: float = 1.0) -> float:
        pace = self._pace(job.arm)
        share = 1.0 if job.whole in self.limits.fixed else share
        return 0.0 if pace is None else pace.seconds(part_of(job.epochs, share))

    def _pace(self, arm: str) -> Pace | None:
        """Return the pace of an arm; one that could not be timed takes as long as the slowest."""
        paces = self.limits.paces or {}
        return paces.get(arm) or max(paces.values(), key=lambda pace: pace.seconds(1), default=None)


def said_seeds(wholes: Sequence[int]) -> str:
    """Return seeds in words."""
    return f"seed{'s' * (len(wholes) > 1)} {', '.join(str(whole % STRIDE) for whole in wholes)}"


def part_of(epochs: int, share: float) -> int:
    """Return a share of epochs, one at least."""
    return max(int(epochs * share + 1e-9), 1)


def _epoch(pace: Pace, epochs: int) -> float:
    return (pace.seconds(epochs) - pace.startup) / epochs


def _without_first(took: float, path: Path) -> float:
    """Return what a run took if its first epoch, which compiles, had been like the others."""
    records = Run(path).metrics()
    return took - sum(float(record["seconds"]) for record in records) + sum(epoch_seconds(records))
