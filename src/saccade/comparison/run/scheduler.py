"""Schedule a comparison's runs within a time budget: shorten them equally, or drop seeds."""

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
from ..plan.folds import STRIDE, FoldRun
from .worker import Outcome

SLACK = 0.02  # tolerated delay, relative to the time of all runs
MORE_SLACK = 0.03  # likewise, before runs of a started seed are discarded
AMONG = 0.5  # least epochs of a further seed, relative to finished seeds; otherwise it is dropped
MOST_AGAIN = 3  # most restarts of late runs


@dataclass(frozen=True)
class Job:
    """One run: an arm with a seed."""

    arm: str
    seed: int
    config: TrainConfig
    path: Path
    fold_run: FoldRun | None = None  # its fold, in cross-validation
    record: tuple[Decision, ...] = ()  # decisions on its settings so far

    @property
    def cv_pass(self) -> int:
        """The group of runs that are kept or dropped together: the seed, or the pass over folds."""
        return self.seed if self.fold_run is None else self.fold_run.cv_pass

    @property
    def epochs(self) -> int:
        """Number of epochs."""
        return self.config.schedule.epochs

    def __str__(self) -> str:
        if self.fold_run is None:
            return f"{self.arm}, seed {self.seed}"
        split = f" of split {self.fold_run.repeat + 1}" if self.fold_run.repeat else ""
        return f"{self.arm}, seed {self.fold_run.cv_pass % STRIDE}, fold {self.fold_run.fold + 1}{split}"


@dataclass(frozen=True)
class Limits:
    """Limits on the runs of a comparison."""

    until: float | None = None  # deadline, by `time.monotonic`; None: no limit
    paces: Mapping[str, Pace] | None = None  # planned paces by arm
    shorten: Callable[[Job, float], Job] | None = None  # shortens a run to a fraction of its epochs, and records that
    least: int = 2  # least seeds to run
    done: int = 0  # seeds finished before
    fixed: frozenset[int] = frozenset()  # partly finished seeds, which keep their epochs


class RunScheduler:
    """Schedules runs in order, within the time budget.

    Before a seed starts, and when a run is late, the remaining runs are fitted to the remaining time, scaled by the
    last run's delay: first seeds are dropped, down to three in total, then epochs of all arms are reduced equally, then
    seeds are dropped down to the least. All runs of a seed have the same fraction of their epochs: if a seed cannot
    finish with it, all of its runs are restarted with a smaller one, or the seed is dropped.
    """

    def __init__(
        self, jobs: Sequence[Job], limits: Limits | None = None, slots: int = 1, now: Callable[[], float] | None = None
    ) -> None:
        self.limits, self.slots, self.now = limits or Limits(), max(slots, 1), now or time.monotonic
        self.passes: dict[int, list[Job]] = {}
        for job in jobs:
            self.passes.setdefault(job.cv_pass, []).append(job)
        self.waiting = deque(self.passes)
        self.present: deque[Job] = deque()  # remaining runs of the current seed
        self.share = self.first = 1.0  # current fraction of the planned epochs, and that of the first seed
        self.slower, self.ended, self.again = 1.0, 0, 0
        self.messages: list[str] = []  # messages on changes
        self.time = 0.0 if self.limits.until is None else max(self.limits.until - self.now(), 0.0)

    def next(self) -> Job | None:
        """Return the next run; None if there are no more, or no time."""
        if self.present and self.slots == 1 and not self._fits(list(self.present), slack=MORE_SLACK):
            self._begin_again(self.present[0].cv_pass)
        if not self.present:
            self._refit()
            if not self.waiting:
                return None
            self.first = self.first if self._before() else self.share
            self.present.extend(self.passes[self.waiting.popleft()])
        return self.present.popleft()

    def end(self, job: Job, outcome: Outcome, took: float) -> None:
        """Record a run's outcome; a late one is rescheduled, possibly with fewer epochs."""
        pace = self._pace(job.arm)
        if outcome.kind == "late":
            if pace is not None and outcome.epoch_seconds:
                self.slower = outcome.epoch_seconds / _epoch(pace, job.epochs)
            if not self._begin_again(job.cv_pass):
                self.again = MOST_AGAIN
                self.present.appendleft(job)
            return
        self.ended += 1
        if pace is not None and outcome.kind == "finished":
            slower = _without_first(took, job.path) / pace.seconds(job.epochs)
            self.slower = slower if self.ended == 1 else (self.slower + slower) / 2

    @property
    def left(self) -> int:
        """Number of remaining runs."""
        return len(self.present) + sum(len(self.passes[cv_pass]) for cv_pass in self.waiting)

    def allowance(self, job: Job) -> Allowance | None:
        """Return a run's time allowance; None if it has no limit."""
        pace, until = self._pace(job.arm), self.limits.until
        if until is None or pace is None or self.slots > 1 or self.again >= MOST_AGAIN:
            return None
        rest = sum(map(self._planned, self.present))
        after = [sum(map(self._planned, self.passes[cv_pass])) for cv_pass in self.waiting]
        if not self.ended:  # all runs can still be shortened without losing any
            return Allowance(until + SLACK * self.time, _epoch(pace, job.epochs), rest + sum(after))
        needed = max(self.limits.least - self._before(), 0)  # further seeds can be shortened or dropped
        rest += AMONG * sum(after[:needed])
        return Allowance(until + MORE_SLACK * self.time, _epoch(pace, job.epochs), rest)

    def _before(self) -> int:
        """Return the number of started seeds."""
        return self.limits.done + len(self.passes) - len(self.waiting)

    def _refit(self) -> None:
        """Drop or shorten waiting runs that do not fit."""
        if self.waiting:
            self._take(*self._choose(list(self.waiting), self._before()))

    def _begin_again(self, cv_pass: int) -> bool:
        """Restart a seed's runs with fewer epochs, or drop it; False if that does not help."""
        before = self._before() - 1
        count, share = self._choose([cv_pass, *self.waiting], before)
        if before >= self.limits.least and share < 1.0:
            count = 0
        same = share == 1.0 or self.limits.shorten is None or cv_pass in self.limits.fixed
        if self.again >= MOST_AGAIN or (count and same):
            return False
        self.again += 1
        self.present.clear()
        self.waiting.appendleft(cv_pass)
        self._take(count, share)
        return True

    def _take(self, count: int, share: float) -> None:
        """Keep `count` of the waiting seeds, with a fraction of their epochs."""
        left = []
        while len(self.waiting) > count:
            left.append(self.waiting.pop())
            del self.passes[left[-1]]
        if left:
            self.messages.append(f"runs are slower than planned: no time left for {describe_seeds(sorted(left))}")
        if share < 1.0 and self.waiting and self.limits.shorten is not None:
            self.share *= share
            short = [cv_pass for cv_pass in self.waiting if cv_pass not in self.limits.fixed]
            for cv_pass in short:
                self.passes[cv_pass] = [self.limits.shorten(job, share) for job in self.passes[cv_pass]]
            if short:
                epochs = count_of(max(job.epochs for job in self.passes[short[0]]), "epoch")
                self.messages.append(f"runs are slower than planned: {epochs} for {describe_seeds(short)}")

    def _choose(self, left: Sequence[int], before: int) -> tuple[int, float]:
        """Return how many of the remaining seeds fit, and with which fraction of their current epochs."""
        if self._fits([job for cv_pass in left for job in self.passes[cv_pass]], slack=SLACK):
            return len(left), 1.0
        longest = max(job.epochs for cv_pass in left for job in self.passes[cv_pass])
        must = max(min(self.limits.least, before + len(left)) - before, 0)
        least = max(min(LEAST_SEEDS, before + len(left)) - before, must)
        floor = max(round((AMONG * self.first if before else FLOOR) / self.share * longest), 1)
        tries = [(count, longest) for count in range(len(left) - 1, least - 1, -1)]
        tries += [(least, epochs) for epochs in range(longest - 1, floor - 1, -1)]
        tries += [(must, epochs) for epochs in range(longest, 0, -1)]
        for count, epochs in tries:
            jobs = [job for cv_pass in left[:count] for job in self.passes[cv_pass]]
            if self._fits(jobs, epochs / longest, slack=-SLACK):  # leave slack for further delays
                return count, epochs / longest
        return must, 1 / longest

    def _fits(self, jobs: Sequence[Job], share: float = 1.0, *, slack: float) -> bool:
        if self.limits.until is None or not self.limits.paces:
            return True
        needed = makespan([self.slower * self._planned(job, share) for job in jobs], self.slots)
        return self.now() + needed <= self.limits.until + slack * self.time

    def _planned(self, job: Job, share: float = 1.0) -> float:
        pace = self._pace(job.arm)
        share = 1.0 if job.cv_pass in self.limits.fixed else share
        return 0.0 if pace is None else pace.seconds(part_of(job.epochs, share))

    def _pace(self, arm: str) -> Pace | None:
        """Return the pace of an arm; default: that of the slowest."""
        paces = self.limits.paces or {}
        return paces.get(arm) or max(paces.values(), key=lambda pace: pace.seconds(1), default=None)


def describe_seeds(cv_passes: Sequence[int]) -> str:
    """Return seeds as text."""
    return f"seed{'s' * (len(cv_passes) > 1)} {', '.join(str(cv_pass % STRIDE) for cv_pass in cv_passes)}"


def part_of(epochs: int, share: float) -> int:
    """Return a fraction of epochs, at least one."""
    return max(int(epochs * share + 1e-9), 1)


def _epoch(pace: Pace, epochs: int) -> float:
    return (pace.seconds(epochs) - pace.startup) / epochs


def _without_first(took: float, path: Path) -> float:
    """Return a run's duration with its first epoch, which includes compilation, replaced by a typical one."""
    records = Run(path).metrics()
    return took - sum(float(record["seconds"]) for record in records) + sum(epoch_seconds(records))
