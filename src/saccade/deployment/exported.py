"""What an export wrote and measured."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..tasks import MetricSpec
from .bundle import Bundle
from .score import Loss
from .verify import Parity


@dataclass(frozen=True)
class ExportedFile:
    """One file that was written and what was measured of it.

    Args:
        path: where it lies.
        format: onnx or pt2.
        precision: float32, float16 or int8.
        mib: its size.
        sha256: of its bytes.
        parity: to the eager model; judged for float32 only.
        score: in the task's primary metric on the pictures, where what they should be answered with is known.
        loss: what of it is lost against the eager model on the same pictures.
        seconds: a picture, five asked at once.
        eager_seconds: the same for the eager model, in turn with it.
    """

    path: Path
    format: str
    precision: str
    mib: float
    sha256: str
    parity: Parity
    score: float | None
    loss: Loss | None
    seconds: float
    eager_seconds: float

    @property
    def accuracy(self) -> float | None:
        """The score, of a task that is judged by accuracy."""
        return self.score


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Args:
        folder: where it lies.
        bundle: what the files say of themselves.
        files: in the order they were written.
        pictures: how many they were judged by.
        origin: where the pictures come from.
        metric: the task's primary one.
        score: of the eager model in it, where what the pictures should be answered with is known.
        notes: remarks.
    """

    folder: Path
    bundle: Bundle
    files: tuple[ExportedFile, ...]
    pictures: int
    origin: str
    metric: MetricSpec
    score: float | None
    notes: tuple[str, ...]

    @property
    def accuracy(self) -> float | None:
        """The score, of a task that is judged by accuracy."""
        return self.score

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON, files by their names, scores by the words of their metric: `accuracy`."""
        told = self._named(asdict(self)) | {"bundle": self.bundle.to_dict(), "metric": self.metric.to_dict()}
        del told["folder"]
        told["files"] = [self._named(asdict(file)) | {"path": file.path.name} for file in self.files]
        return told

    def _named(self, told: dict[str, Any]) -> dict[str, Any]:
        words = re.sub(r"\W+", "_", self.metric.words)
        return {words if name == "score" else name: value for name, value in told.items()}
