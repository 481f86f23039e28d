"""Progress output of training: a progress bar, a line for each epoch, and TensorBoard curves."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import rich.console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

from ..settings import TrainConfig
from ..support.durations import say_duration
from ..support.wording import count_of
from ..tasks import MetricSpec
from .length import RunLength

REFRESH = 0.5  # seconds between refreshes, each of which waits for the GPU
LOG = 30.0  # seconds between lines in a log, where there is no bar
FIRST_STEPS, FIRST_SECONDS = 3, 2.0  # steps and seconds from which the total time is estimated, after one warm-up step
WORTH_SAYING = 10.0  # runs estimated to be shorter print no estimate
FORWARD = 0.3  # time of a forward pass, relative to a training step


class Console:
    """Progress bar over all steps (in a log, occasional lines), and a line for each epoch; nothing if `quiet`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.out = rich.console.Console(stderr=True, quiet=quiet)
        self.quiet = quiet
        self.epochs = self.steps = self.total = 1
        self.validating = 0.0  # duration of the validations, in steps
        self.estimated = quiet  # whether the estimate was printed
        self.warm: tuple[float, int] | None = None  # end of the first step, and steps done by then
        self.epoch, self.logged = 0, time.monotonic()
        self.metrics: dict[str, MetricSpec] = {}
        self.primary, self.running = "", tuple[str, ...]()
        self.progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[message]}"),
            TimeRemainingColumn(),
            console=self.out,
            transient=True,
            disable=quiet or not self.out.is_terminal,
        )
        self.bar = self.progress.add_task("", total=None, epoch="", message="")
        self.looked = self.epoch_started = 0.0
        self.done = 0

    def judge_by(self, metrics: Sequence[MetricSpec], primary: str, running: tuple[str, ...]) -> None:
        """Set the metrics to show."""
        self.metrics, self.primary, self.running = {one.name: one for one in metrics}, primary, running

    def expect(self, config: TrainConfig, steps: int, validation: int, *, estimated: bool) -> None:
        """Set the total number of steps.

        Args:
            estimated: whether the total time has been printed.
        """
        self.estimated = estimated or self.quiet
        self.shorten(RunLength.of(config.schedule.epochs, steps))
        times = self.epochs // config.keep.evaluate_every + 1
        self.validating = FORWARD * times * validation / config.optim.batch_size

    def shorten(self, length: RunLength) -> None:
        """Set the length of a shortened run."""
        self.epochs, self.steps, self.total = length.epochs, length.steps, length.total

    def __enter__(self) -> "Console":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def say(self, text: str, *, style: str | None = None) -> None:
        """Print a message above the bar."""
        self.out.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def begin_epoch(self, epoch: int, first: int, steps: int) -> None:
        """Show the run's progress at the start of an epoch."""
        self.done = epoch * steps + first
        self.epoch_started = time.monotonic()
        self.epoch = epoch
        self.progress.update(self.bar, total=self.total, completed=self.done, epoch=f"{epoch + 1}/{self.epochs}")

    def advance(self, totals: Tensor) -> None:
        """Advance the bar by a step; `totals` are the epoch's summed loss, running metrics and sample count."""
        self.done += 1
        now = time.monotonic()
        if self.warm is None:
            self.warm = now, self.done
        self._say_how_long(now)
        if self.quiet or now - (self.logged if self.progress.disable else self.looked) < self._pause():
            return
        self.looked = self.logged = now
        loss, *followed, count = totals.tolist()
        rate = count / max(now - self.epoch_started, 1e-9)
        message = [f"loss {loss / count:.3f}"]
        for name, value in zip(self.running, followed, strict=False):
            spec = self.metrics.get(name)
            shown = f"{value / count:.1%}" if spec is not None and spec.share else f"{value / count:.4g}"
            message.append(f"{spec.words if spec is not None else name} {shown}")
        message.append(_speed(rate))
        self.progress.update(self.bar, completed=self.done, message="  ".join(message))
        if self.progress.disable:
            step = f"epoch {self.epoch + 1}/{self.epochs}  step {self.done - self.epoch * self.steps}/{self.steps}"
            self.say("  ".join([step, *message, *self._left(now)]))

    def _pause(self) -> float:
        """Return the seconds between refreshes."""
        return LOG if self.progress.disable else REFRESH

    def _say_how_long(self, now: float) -> None:
        """Print the estimated total time once, after the first steps."""
        if self.estimated or self.warm is None:
            return
        since, steps = now - self.warm[0], self.done - self.warm[1]
        if steps >= 1 and (steps >= FIRST_STEPS or self.done % self.steps == 0) and since >= FIRST_SECONDS:
            self.estimated = True
            resumed = self.warm[1] > 1
            rest = self.total - (self.done if resumed else 0) + self.validating
            seconds = since / steps * rest
            if seconds >= WORTH_SAYING:
                runs = f"{count_of(self.epochs, 'epoch')} x {count_of(self.steps, 'step')}"
                took = f"about {say_duration(seconds)}{' left' if resumed else ''}"
                hint = "; use --time 10m to fit the run into ten minutes" if seconds > 900 and not resumed else ""
                self.say(f"{runs}, {took} (estimated from the first {count_of(steps, 'step')}){hint}")

    def _left(self, now: float) -> list[str]:
        """Return the remaining time as text, if it is long enough to show."""
        if self.warm is None or self.done <= self.warm[1]:
            return []
        pace = (now - self.warm[0]) / (self.done - self.warm[1])  # includes validations so far
        left = pace * (self.total - self.done)
        return [f"{say_duration(left)} left"] if left >= WORTH_SAYING else []

    def end_epoch(self, record: dict[str, Any]) -> None:
        """Print an epoch's line."""
        parts = [f"epoch {record['epoch']:>{len(str(self.epochs))}}/{self.epochs}", f"loss {record['train_loss']:.4f}"]
        if "val_loss" in record:
            parts += [f"val loss {record['val_loss']:.4f}"]
        spec = self.metrics.get(self.primary)
        if spec is not None and f"val_{spec.name}" in record:
            parts += [f"val {spec.words} {spec.show(record[f'val_{spec.name}'])}"]
        parts += [_speed(record["images_per_second"])]
        if record["bad_samples"]:
            parts += [f"{count_of(record['bad_samples'], 'unreadable sample')} skipped"]
        self.logged = time.monotonic()
        self.say("  ".join([*parts, *self._left(self.logged)]))

    def close(self, title: str, facts: dict[str, str]) -> None:
        """Print the summary of a run."""
        table = Table(title=title, show_header=False, title_justify="left", box=None, pad_edge=False)
        for name, value in facts.items():
            table.add_row(name, value)
        if not self.out.is_terminal:
            self.out.width = 1000  # lines are not truncated in files and pipes
        self.out.print(table, soft_wrap=True)


def _speed(rate: float) -> str:
    """Format a speed, with enough digits if it is slow."""
    return f"{rate:,.0f} samples/s" if rate >= 10 else f"{rate:.2g} samples/s"


class Board:
    """TensorBoard curves in the run's folder `tensorboard/`; later epochs than the resumed one are dropped."""

    def __init__(self, folder: Path, *, epoch: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "keep.tensorboard=true was given, but TensorBoard is not installed; run pip install 'saccade[log]', or "
                "leave it out: metrics.jsonl and metrics.csv are always written"
            ) from error
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=epoch + 1)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add an epoch's record."""
        for name, value in record.items():
            if name != "epoch":
                self.writer.add_scalar(name, value, record["epoch"])
        self.writer.flush()
