"""What an export wrote and measured."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .bundle import Bundle
from .verify import Loss, Parity


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
        accuracy: on the pictures, where they have labels.
        loss: of accuracy, against the eager model on the same pictures.
        seconds: a picture, five asked at once.
        eager_seconds: the same for the eager model, in turn with it.
    """

    path: Path
    format: str
    precision: str
    mib: float
    sha256: str
    parity: Parity
    accuracy: float | None
    loss: Loss | None
    seconds: float
    eager_seconds: float


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Args:
        folder: where it lies.
        bundle: what the files say of themselves.
        files: in the order they were written.
        pictures: how many they were judged by.
        origin: where the pictures come from.
        accuracy: of the eager model on them, where they have labels.
        notes: remarks.
    """

    folder: Path
    bundle: Bundle
    files: tuple[ExportedFile, ...]
    pictures: int
    origin: str
    accuracy: float | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON, files by their names."""
        told = asdict(self)
        del told["folder"]
        told["bundle"]["versions"] = dict(self.bundle.versions)
        told["files"] = [asdict(file) | {"path": file.path.name} for file in self.files]
        return told
