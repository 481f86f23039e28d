"""Dataset readers, one for each layout; other packages add theirs by the entry point group `saccade.readers`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ..settings.registry import Registry
from .source import Splits
from .split import TEST, TRAIN, VAL
from .table import ReadTargets, read_classes


@dataclass(frozen=True)
class ReadOptions:
    """Options of readers.

    Args:
        buffer: size of the shuffle buffer of a stream.
        bad_limit: share of the samples of a list that may be missing.
        read_targets: function that makes targets of a table's columns.
        group: a table's column of groups, which are never split.
        columns: a list's column names by role.
        task: the task, if known.
    """

    buffer: int = 4096
    bad_limit: float = 0.05
    read_targets: ReadTargets = read_classes
    group: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    task: str | None = None


class Reader(Protocol):
    """Opens datasets of one layout.

    Attributes:
        rank: readers are tried in ascending order, so a general reader has a high rank. If a task is given, its readers
            are tried first.
    """

    rank: int

    def matches(self, spec: str, path: Path) -> bool:
        """Whether a spec, or the file or folder it names, is of this layout."""

    def open(self, spec: str, path: Path, options: ReadOptions) -> Splits:
        """Open it; no sample is decoded."""


READERS: Registry[type[Reader]] = Registry("reader", group="saccade.readers", home="saccade.data")
register_reader = READERS.register


def holds(path: Path, pattern: str) -> bool:
    """Whether a folder, or a split folder in it, has files that match; class folders are not searched."""
    places = [path, *(path / name for name in (*TRAIN, *VAL, *TEST, "data"))]
    return any(next(place.glob(pattern), None) is not None for place in places if place.is_dir())
