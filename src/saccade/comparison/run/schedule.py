"""Execute runs in this process or in parallel workers, with progress output."""

import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rich.console
from rich.progress import BarColumn, Progress, TextColumn

from ...runs.run import Run
from ...support.durations import say_duration
from ...tasks.metric import MetricSpec
from ...training.allowance import Allowance
from ...training.loop import Interrupted
from ..plan.snapshot import DataCache
from .processes import POLL, Crew, Worker, stop_all
from .scheduler import Job, RunScheduler
from .worker import Outcome, train_run

TICK = 1.0  # seconds between progress updates


class Watch:
    """A progress bar over all runs, with the running ones and the remaining time; a line for each finished one.

    Args:
        seconds: expected total duration, if known.
        metric: metric to show for finished runs, if any.
    """

    def __init__(
        self, *, total: int, seconds: float | None = None, metric: MetricSpec | None = None, quiet: bool = False
    ) -> None:
        self.out = rich.console.Console(stderr=True, quiet=quiet)
        self.total, self.expected, self.metric = total, seconds, metric
        self.ended = 0
        self.running: dict[str, tuple[Path, int]] = {}
        self.started: dict[str, float] = {}
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
        """Print a message above the bar."""
        self.out.print(text, style=style, highlight=False, markup=False)

    def begin(self, job: object, path: Path, epochs: int) -> None:
        """Record a started run."""
        self.running[str(job)] = (path, epochs)
        self.started[str(job)] = time.monotonic()

    def end(self, job: object, outcome: Outcome | None) -> None:
        """Record a run's outcome; None if it is restarted."""
        path, _ = self.running.pop(str(job))
        if outcome is None:
            return
        self.ended += 1
        took = say_duration(time.monotonic() - self.started[str(job)])
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
        """Return the bar's fields after the given time."""
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


def run_jobs(
    jobs: Sequence[Job], crew: Crew, watch: Watch, scheduler: RunScheduler | None = None, cache: DataCache | None = None
) -> dict[tuple[str, int], Outcome]:
    """Execute jobs in order, by workers or in this process, within the time budget; return their outcomes."""
    scheduler = scheduler or RunScheduler(jobs, slots=len(crew.workers))
    with watch:
        if crew.workers:
            return run_side_by_side(jobs, crew, watch, scheduler)
        return run_here(watch, scheduler, cache)


def run_here(watch: Watch, scheduler: RunScheduler, cache: DataCache | None = None) -> dict[tuple[str, int], Outcome]:
    """Execute jobs sequentially in this process; an interrupted run can be resumed."""
    found = {}
    while (job := _next(watch, scheduler)) is not None:
        watch.begin(job, job.path, job.epochs)
        outcome = train_run(job.config, job.path, cache, allowance=scheduler.allowance(job), record=job.record)
        if _end(job, outcome, watch, scheduler):
            found[(job.arm, job.seed)] = outcome
    return found


def _next(watch: Watch, scheduler: RunScheduler) -> Job | None:
    """Return the next run, and print the scheduler's messages."""
    job = scheduler.next()
    while scheduler.messages:
        watch.say(scheduler.messages.pop(0), style="yellow")
        watch.total = watch.ended + len(watch.running) + scheduler.left + (job is not None)
    return job


def _end(job: Job, outcome: Outcome, watch: Watch, scheduler: RunScheduler) -> bool:
    """Record a run's outcome; False if it was late, and is restarted or dropped."""
    scheduler.end(job, outcome, time.monotonic() - watch.started[str(job)])
    late = outcome.kind == "late"
    watch.end(job, None if late else outcome)
    if late and job not in scheduler.present:
        shutil.rmtree(job.path, ignore_errors=True)
    return not late


@dataclass
class _Working:
    job: Job
    worker: Worker
    retried: bool


def run_side_by_side(
    jobs: Sequence[Job], crew: Crew, watch: Watch, scheduler: RunScheduler
) -> dict[tuple[str, int], Outcome]:
    """Execute jobs in worker processes; a run whose process dies is resumed once."""
    again = deque[Job]()
    free, working = list(crew.workers), list[_Working]()
    found: dict[tuple[str, int], Outcome] = {}
    try:
        while True:
            while free:
                job = _next(watch, scheduler)
                retried = job is None and bool(again)
                job = again.popleft() if retried else job
                if job is None:
                    break
                working.append(_begin(job, free.pop(0), retried, scheduler.allowance(job)))
                watch.begin(job, job.path, job.epochs)
            if not working:
                break
            time.sleep(POLL)
            for one in [one for one in working if one.worker.ended()]:
                working.remove(one)
                free.append(one.worker)
                outcome = _outcome(one.worker)
                if outcome.kind not in ("finished", "refused", "late") and not one.retried:
                    watch.say(f"{one.job}: {outcome.reason}; resuming it once")
                    again.append(one.job)
                    watch.end(one.job, None)
                elif _end(one.job, outcome, watch, scheduler):
                    found[(one.job.arm, one.job.seed)] = outcome
    except KeyboardInterrupt:
        watch.say("saving and stopping all runs ...")
        raise Interrupted(signal.SIGINT, jobs[0].path.parent) from None
    finally:
        stop_all([one.worker for one in working])
    return found


def _begin(job: Job, worker: Worker, retried: bool, allowance: Allowance | None) -> _Working:
    asked: dict[str, Any] = {"do": "train", "config": worker.slot.settings(job.config), "path": str(job.path)}
    asked["record"] = [asdict(one) for one in job.record]
    asked |= {} if allowance is None else {"allowance": asdict(allowance)}
    answer, log = job.path.with_name(f".{job.path.name}.answer.json"), job.path.with_name(f"{job.path.name}.log")
    worker.begin(asked, answer=answer, log=log)
    return _Working(job, worker, retried)


def _outcome(worker: Worker) -> Outcome:
    """Return a run's outcome; if it failed, the worker is stopped to free its resources."""
    try:
        outcome = Outcome(**worker.read())
    except (RuntimeError, TypeError) as error:
        outcome = Outcome("failed", str(error))
    if outcome.kind not in ("finished", "late"):
        worker.stop()
    return outcome
