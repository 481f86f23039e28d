"""Run the runs of a comparison, here or side by side in processes of their own, and show how far they are."""

import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich.console
from rich.progress import BarColumn, Progress, TextColumn

from ..config import TrainConfig
from ..durations import say_duration
from ..runs import Run
from ..tasks.metric import MetricSpec
from ..training.loop import Interrupted
from .cut import STRIDE, Piece
from .processes import POLL, Crew, Worker, stop_all
from .worker import Outcome, train_run

TICK = 1.0  # seconds between looks at how far the runs are
LEAST_SEEDS = 2  # that are run whatever the time


@dataclass(frozen=True)
class Job:
    """One run: an arm with a seed."""

    arm: str
    seed: int
    config: TrainConfig
    path: Path
    piece: Piece | None = None  # of a pass over folds

    def __str__(self) -> str:
        if self.piece is None:
            return f"{self.arm}, seed {self.seed}"
        cut = f" of cut {self.piece.repeat + 1}" if self.piece.repeat else ""
        return f"{self.arm}, seed {self.piece.whole % STRIDE}, fold {self.piece.fold + 1}{cut}"


class Watch:
    """A bar over all runs, with those under way and when it will be over; a line for each that ended.

    Args:
        seconds: all of it is expected to take; None if nobody knows.
        metric: that runs are judged by, shown of each that finished; None shows none.
    """

    def __init__(
        self, *, total: int, seconds: float | None = None, metric: MetricSpec | None = None, quiet: bool = False
    ) -> None:
        self.out = rich.console.Console(stderr=True, quiet=quiet)
        self.total, self.expected, self.metric = total, seconds, metric
        self.ended = 0
        self.running: dict[str, tuple[Path, int]] = {}
        self.begun: dict[str, float] = {}
        self.progress = Progress(
            TextColumn("{task.fields[state]}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[left]}"),
            console=self.out,
            transient=True,
            disable=quiet or not self.out.is_terminal,
        )
        self.bar = self.progress.add_task("", total=max(total, 1), state="", left="")
        self.over = threading.Event()
        self.thread: threading.Thread | None = None

    def __enter__(self) -> "Watch":
        self.since = time.monotonic()
        self.progress.start()
        if not self.progress.disable:
            self.thread = threading.Thread(target=self._tick, daemon=True)
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        if self.thread is not None:
            self.thread.join()
        self.progress.stop()

    def say(self, text: str, *, style: str | None = None) -> None:
        """Print a remark above the bar."""
        self.out.print(text, style=style, highlight=False, markup=False)

    def begin(self, job: object, path: Path, epochs: int) -> None:
        """Take note of a run that begins."""
        self.running[str(job)] = (path, epochs)
        self.begun[str(job)] = time.monotonic()

    def end(self, job: object, outcome: Outcome | None) -> None:
        """Take note of a run that ended; None if it will be begun again."""
        path, _ = self.running.pop(str(job))
        if outcome is None:
            return
        self.ended += 1
        took = say_duration(time.monotonic() - self.begun[str(job)])
        if outcome.kind == "finished":
            result, style = f"{self._score(path)}{took}", None
        else:
            result, style = f"failed: {outcome.reason}", "yellow"
        self.say(f"{self.ended:>{len(str(self.total))}}/{self.total} {job}: {result}", style=style)

    def _score(self, path: Path) -> str:
        value = None if self.metric is None else Run(path).summary().get(f"val_{self.metric.name}")
        return "" if self.metric is None or value is None else f"{self.metric.words} {self.metric.show(value)}, "

    def _tick(self) -> None:
        while not self.over.wait(TICK):
            self.progress.update(self.bar, **self.standing(time.monotonic() - self.since))

    def standing(self, elapsed: float) -> dict[str, Any]:
        """Return what the bar shows after so many seconds."""
        running = list(self.running.items())
        parts = [min(len(Run(path).metrics()) / epochs, 1.0) for _, (path, epochs) in running]
        done = self.ended + sum(parts)
        left = elapsed * (self.total - done) / done if done >= 0.5 else (self.expected or 0.0) - elapsed
        names = "; ".join(name for name, _ in running[:3]) + (" ..." if len(running) > 3 else "")
        known = done >= 0.5 or self.expected is not None
        return {
            "completed": done,
            "state": f"{self.ended}/{self.total} runs, running: {names}",
            "left": f"about {say_duration(max(left, 0.0))} left" if known else "",
        }


class Clock:
    """Tells whether there is time for another seed, until a moment of the monotonic clock, from how long runs took."""

    def __init__(self, jobs: Sequence[Job], until: float | None, slots: int) -> None:
        self.until, self.slots = until, max(slots, 1)
        self.seeds = list(dict.fromkeys(job.seed for job in jobs))
        self.arms = len({job.arm for job in jobs})
        self.took: list[float] = []
        self.over = False

    def allows(self, seed: int) -> bool:
        """Whether a seed may begin: all of its runs fit, by those that ended; the first two always may."""
        if self.until is None or seed in self.seeds[:LEAST_SEEDS] or not self.took:
            return True
        rounds = -(-self.arms // self.slots)
        last = self.took[-self.arms :]  # the first ones waited for the compiler
        self.over = self.over or time.monotonic() + rounds * sum(last) / len(last) > self.until
        return not self.over


def run_jobs(
    jobs: Sequence[Job], crew: Crew, watch: Watch, *, until: float | None = None
) -> dict[tuple[str, int], Outcome]:
    """Run jobs in their order, by a crew or in this process, as long as there is time; say how each ended."""
    clock = Clock(jobs, until, len(crew.workers))
    with watch:
        return run_side_by_side(jobs, crew, watch, clock) if crew.workers else run_here(jobs, watch, clock)


def run_here(jobs: Sequence[Job], watch: Watch, clock: Clock | None = None) -> dict[tuple[str, int], Outcome]:
    """Run jobs one after another in this process; Ctrl-C leaves the present one resumable."""
    found = {}
    clock = clock or Clock(jobs, None, 1)
    seed = None
    for job in jobs:
        if job.seed != seed and not clock.allows(job.seed):
            break
        seed, begun = job.seed, time.monotonic()
        watch.begin(job, job.path, job.config.schedule.epochs)
        found[(job.arm, job.seed)] = outcome = train_run(job.config, job.path)
        clock.took.append(time.monotonic() - begun)
        watch.end(job, outcome)
    return found


@dataclass
class _Working:
    job: Job
    worker: Worker
    retried: bool


def run_side_by_side(
    jobs: Sequence[Job], crew: Crew, watch: Watch, clock: Clock | None = None
) -> dict[tuple[str, int], Outcome]:
    """Run jobs in processes beside this one; a run whose process dies is resumed once."""
    clock = clock or Clock(jobs, None, len(crew.workers))
    waiting = deque((job, False) for job in jobs)
    seeds: set[int] = set()  # that have begun
    free, working = list(crew.workers), list[_Working]()
    found: dict[tuple[str, int], Outcome] = {}
    try:
        while waiting or working:
            while waiting and free:
                job, retried = waiting.popleft()
                if job.seed not in seeds and not clock.allows(job.seed):
                    continue
                seeds.add(job.seed)
                working.append(_begin(job, free.pop(0), retried))
                watch.begin(job, job.path, job.config.schedule.epochs)
            time.sleep(POLL)
            for one in [one for one in working if one.worker.ended()]:
                working.remove(one)
                free.append(one.worker)
                outcome = _outcome(one.worker)
                clock.took.append(time.monotonic() - watch.begun[str(one.job)])
                if outcome.kind not in ("finished", "refused") and not one.retried:
                    watch.say(f"{one.job}: {outcome.reason}; resuming it once")
                    waiting.append((one.job, True))
                    watch.end(one.job, None)
                    continue
                watch.end(one.job, outcome)
                found[(one.job.arm, one.job.seed)] = outcome
    except KeyboardInterrupt:
        watch.say("saving and stopping all runs ...")
        raise Interrupted(signal.SIGINT, jobs[0].path.parent) from None
    finally:
        stop_all([one.worker for one in working])
    return found


def _begin(job: Job, worker: Worker, retried: bool) -> _Working:
    asked = {"do": "train", "config": worker.slot.settings(job.config), "path": str(job.path)}
    answer, log = job.path.with_name(f".{job.path.name}.answer.json"), job.path.with_name(f"{job.path.name}.log")
    worker.begin(asked, answer=answer, log=log)
    return _Working(job, worker, retried)


def _outcome(worker: Worker) -> Outcome:
    """Return how a run ended; after one that did not finish its process ends as well, and takes what it holds along."""
    try:
        outcome = Outcome(**worker.read())
    except (RuntimeError, TypeError) as error:
        outcome = Outcome("failed", str(error))
    if outcome.kind != "finished":
        worker.stop()
    return outcome
