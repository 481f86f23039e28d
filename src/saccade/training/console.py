"""What a user sees while a model trains: a bar and a line an epoch, and the curves in TensorBoard."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import rich.console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

from ..tasks import MetricSpec

REFRESH = 0.5  # seconds; the loss of a GPU is waited for no more often


class Console:
    """A bar over all steps of a run, and a line an epoch; nothing if `quiet`.

    Args:
        epochs: of the run.
        quiet: say nothing: another process speaks, or nobody wants to hear.
    """

    def __init__(self, *, epochs: int = 1, quiet: bool = False) -> None:
        self.out = rich.console.Console(stderr=True, quiet=quiet)
        self.epochs, self.quiet = epochs, quiet
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
        self.looked = self.begun = 0.0
        self.done = self.seen = 0

    def judge_by(self, metrics: Sequence[MetricSpec], primary: str, running: tuple[str, ...]) -> None:
        """Call numbers by their words.

        Args:
            metrics: what answers are judged by.
            primary: name of the one that counts.
            running: names of what totals count besides the loss.
        """
        self.metrics, self.primary, self.running = {one.name: one for one in metrics}, primary, running

    def __enter__(self) -> "Console":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def say(self, text: str, *, style: str | None = None) -> None:
        """Print a remark above the bar."""
        self.out.print(text, style=style, highlight=False, markup=False)

    def begin_epoch(self, epoch: int, first: int, steps: int) -> None:
        """Show where the run stands."""
        self.done = epoch * steps + first
        self.begun, self.seen = time.monotonic(), 0
        self.progress.update(
            self.bar, total=self.epochs * steps, completed=self.done, epoch=f"{epoch + 1}/{self.epochs}"
        )

    def advance(self, totals: Tensor) -> None:
        """Move the bar by a step; `totals` are the epoch's summed loss, what the task follows, and samples so far."""
        self.done += 1
        now = time.monotonic()
        if self.progress.disable or now - self.looked < REFRESH:
            return
        self.looked = now
        loss, *followed, count = totals.tolist()
        rate = count / max(now - self.begun, 1e-9)
        message = [f"loss {loss / count:.3f}"]
        for name, value in zip(self.running, followed, strict=False):
            spec = self.metrics.get(name)
            shown = f"{value / count:.1%}" if spec is not None and spec.share else f"{value / count:.4g}"
            message.append(f"{spec.words if spec is not None else name} {shown}")
        message.append(f"{rate:,.0f} samples/s")
        self.progress.update(self.bar, completed=self.done, message="  ".join(message))

    def end_epoch(self, record: dict[str, Any]) -> None:
        """Print an epoch's line."""
        parts = [f"epoch {record['epoch']:>{len(str(self.epochs))}}/{self.epochs}", f"loss {record['train_loss']:.4f}"]
        if "val_loss" in record:
            parts += [f"val loss {record['val_loss']:.4f}"]
        spec = self.metrics.get(self.primary)
        if spec is not None and f"val_{spec.name}" in record:
            parts += [f"val {spec.words} {spec.show(record[f'val_{spec.name}'])}"]
        parts += [f"{record['images_per_second']:,.0f} samples/s"]
        if record["bad_pictures"]:
            parts += [f"{record['bad_pictures']} unreadable samples skipped"]
        self.say("  ".join(parts))

    def close(self, title: str, facts: dict[str, str]) -> None:
        """Print what a run ended with."""
        table = Table(title=title, show_header=False, title_justify="left", box=None, pad_edge=False)
        for name, value in facts.items():
            table.add_row(name, value)
        if not self.out.is_terminal:
            self.out.width = 1000  # in a file or a pipe nothing is cut
        self.out.print(table, soft_wrap=True)


class Board:
    """Curves of a run under `tensorboard/` in its folder.

    Args:
        folder: of the run.
        epoch: that the run is resumed after; curves beyond it are drawn again.
    """

    def __init__(self, folder: Path, *, epoch: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "keep.tensorboard was asked for and TensorBoard is not installed; pip install 'saccade[log]', or leave "
                "it out: metrics.jsonl and metrics.csv are written in any case"
            ) from error
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=epoch + 1)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add an epoch's record."""
        for name, value in record.items():
            if name != "epoch":
                self.writer.add_scalar(name, value, record["epoch"])
        self.writer.flush()
