"""Readers of sets on disk, by layout; other packages add theirs by the entry points `saccade.readers`."""

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
    """What a reader may need to know.

    Args:
        buffer: samples that a stream shuffles at a time.
        bad_limit: share of the samples of a list that may be missing.
        read_targets: what the task makes of a table's columns.
        group: a table's column that says which samples belong together.
        columns: names of a list's columns by what they are to be read as.
        task: that the samples are for, where it is known.
    """

    buffer: int = 4096
    bad_limit: float = 0.05
    read_targets: ReadTargets = read_classes
    group: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    task: str | None = None


class Reader(Protocol):
    """Opens the sets of one layout.

    Attributes:
        rank: readers are asked from the lowest rank on; one that would take what another knows better has a high one.
            Of a folder that two tasks can read, the reader whose `task` was asked for goes first.
    """

    rank: int

    def matches(self, spec: str, path: Path) -> bool:
        """Whether a spec, or the file or folder it names, is of this layout."""

    def open(self, spec: str, path: Path, options: ReadOptions) -> Splits:
        """Open it; no sample is decoded."""


READERS: Registry[type[Reader]] = Registry("reader", group="saccade.readers", home="saccade.data")
register_reader = READERS.register


def holds(path: Path, pattern: str) -> bool:
    """Tell whether a folder, or a folder in it named after a split, has such files; class folders are not searched."""
    places = [path, *(path / name for name in (*TRAIN, *VAL, *TEST, "data"))]
    return any(next(place.glob(pattern), None) is not None for place in places if place.is_dir())
