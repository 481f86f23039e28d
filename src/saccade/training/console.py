"""What a user sees while a model trains."""

import time
from typing import Any

import rich.console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

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
        self.progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
            console=self.out,
            transient=True,
            disable=quiet or not self.out.is_terminal,
        )
        self.bar = self.progress.add_task("", total=None, epoch="", told="")
        self.looked = self.begun = 0.0
        self.done = self.seen = 0

    def __enter__(self) -> "Console":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def say(self, text: str, *, style: str | None = None) -> None:
        """Print a remark above the bar."""
        self.out.print(text, style=style, highlight=False)

    def begin_epoch(self, epoch: int, first: int, steps: int) -> None:
        """Show where the run stands."""
        self.done = epoch * steps + first
        self.begun, self.seen = time.monotonic(), 0
        self.progress.update(
            self.bar, total=self.epochs * steps, completed=self.done, epoch=f"{epoch + 1}/{self.epochs}"
        )

    def advance(self, totals: Tensor) -> None:
        """Move the bar by a step; `totals` are the epoch's summed loss, correct answers and pictures so far."""
        self.done += 1
        now = time.monotonic()
        if self.progress.disable or now - self.looked < REFRESH:
            return
        self.looked = now
        loss, correct, count = totals.tolist()
        rate = count / max(now - self.begun, 1e-9)
        told = f"loss {loss / count:.3f}  accuracy {correct / count:.1%}  {rate:,.0f} images/s"
        self.progress.update(self.bar, completed=self.done, told=told)

    def end_epoch(self, record: dict[str, Any]) -> None:
        """Print an epoch's line."""
        parts = [f"epoch {record['epoch']:>{len(str(self.epochs))}}/{self.epochs}", f"loss {record['train_loss']:.4f}"]
        if "val_top1" in record:
            parts += [f"val loss {record['val_loss']:.4f}", f"val accuracy {record['val_top1']:.2%}"]
        parts += [f"{record['images_per_second']:,.0f} images/s"]
        if record["bad_pictures"]:
            parts += [f"{record['bad_pictures']} pictures left out"]
        self.say("  ".join(parts))

    def close(self, title: str, facts: dict[str, str]) -> None:
        """Print what a run ended with."""
        table = Table(title=title, show_header=False, title_justify="left")
        for name, value in facts.items():
            table.add_row(name, value)
        self.out.print(table)
