"""The metrics of a run for TensorBoard, beside the files that are always written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Board:
    """Curves of a run under `tensorboard/` in its folder.

    Args:
        folder: of the run.
        epoch: that the run goes on after; curves beyond it are drawn again.
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
