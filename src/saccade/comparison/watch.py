"""What a user sees while a comparison runs."""

import threading
import time
from pathlib import Path
from typing import Any

import rich.console
from rich.progress import BarColumn, Progress, TextColumn

from ..runs import Run
from ..tasks.metric import MetricSpec
from .budget import say_duration
from .worker import Outcome

TICK = 1.0  # seconds between looks at how far the runs are


class Watch:
    """A bar over all runs, with those under way and when it will be over; a line for each that ended.

    Args:
        total: runs to do.
        seconds: all of it is expected to take; None if nobody knows.
        metric: that runs are judged by, to be told of each that finished; None tells none.
        quiet: say nothing.
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
            TextColumn("{task.fields[told]}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[left]}"),
            console=self.out,
            transient=True,
            disable=quiet or not self.out.is_terminal,
        )
        self.bar = self.progress.add_task("", total=max(total, 1), told="", left="")
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
            told, style = f"{self._score(path)}{took}", None
        else:
            told, style = f"failed: {outcome.reason}", "yellow"
        self.say(f"{self.ended:>{len(str(self.total))}}/{self.total} {job}: {told}", style=style)

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
            "told": f"{self.ended}/{self.total} runs, running: {names}",
            "left": f"about {say_duration(max(left, 0.0))} left" if known else "",
        }
