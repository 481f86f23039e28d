"""Tables that list samples: columns of text by name, from CSV, TSV or Parquet, and how tasks find theirs."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from .split import abbreviate
from .targets import ClassTargets, Targets

PATHS = ("path", "image", "file", "filename", "file_name", "image_path", "filepath")
SPLITS = ("split", "set", "subset")
LABELS = ("label", "class", "class_name", "target")


@dataclass(frozen=True)
class Table:
    """Columns of a list.

    Args:
        path: of the file.
        columns: texts by the column's name, as many in each.
        train: rows of the training part, of which the outputs are those that can be learned, N bool.
        parts: what the file calls the training part and the validation part.
    """

    path: Path
    columns: dict[str, list[str]]
    train: np.ndarray
    parts: tuple[str, str] = ("train", "val")

    def __len__(self) -> int:
        return len(self.train)

    def find(self, known: Sequence[str]) -> list[str] | None:
        """Return the column that has one of some names, whatever its case; None if there is none."""
        for name in known:
            for given, values in self.columns.items():
                if given.strip().lower() == name and len(values) == len(self):
                    return values
        return None

    def rest(self) -> list[str]:
        """Return the names of the columns that say neither which file nor which part."""
        return [name for name in self.columns if name.strip().lower() not in (*PATHS, *SPLITS)]

    def refuse(self, wanted: str) -> ValueError:
        """Return the error that says which columns there are and what is wanted."""
        return ValueError(f"{self.path} has the columns {abbreviate(list(self.columns), most=20)}; it needs {wanted}")

    def unknown(self, strange: Sequence[str], known: Sequence[str]) -> ValueError:
        """Return the error that the validation part has labels that nothing can be learned of."""
        train, val = self.parts
        return ValueError(
            f"{self.path}: the split {val!r} has labels that {train!r} lacks: {abbreviate(strange)}; the training "
            f"labels are {abbreviate(known)}"
        )

    def blank(self, row: int) -> ValueError:
        """Return the error that a row is not filled in; rows count from 1."""
        return ValueError(f"{self.path}: row {row + 1} has an empty path or label; fill it or take it out")


ReadTargets = Callable[[Table], Targets]  # what a task makes of a table


def read_classes(table: Table) -> ClassTargets:
    """Return the classes that a column `label` names, those of the training part in their order."""
    labels = table.find(LABELS)
    if labels is None:
        raise table.refuse(f"one named {' or '.join(LABELS)}")
    blank = next((row for row, label in enumerate(labels) if not label), None)
    if blank is not None:
        raise table.blank(blank)
    classes = ordered({label for label, train in zip(labels, table.train, strict=True) if train})
    unknown = ordered(set(labels) - set(classes))
    if unknown:
        raise table.unknown(unknown, classes)
    lookup = {name: index for index, name in enumerate(classes)}
    return ClassTargets(np.array([lookup[label] for label in labels], dtype=np.int64), classes)


def ordered(labels: set[str]) -> tuple[str, ...]:
    """Sort labels: as numbers if all of them are."""
    numeric = all(label.isdecimal() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label), label) if numeric else (0, label)))


def read_columns(path: Path) -> dict[str, list[str]] | None:
    """Read a list's columns; None if a Parquet file holds the images themselves."""
    return _parquet_columns(path) if path.suffix.lower() == ".parquet" else _csv_columns(path)


def _csv_columns(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ","))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8 ({error})") from error
    rows = [row for row in rows if row]
    if not rows:
        raise ValueError(f"{path} is empty; its first line names the columns, such as path,label")
    twice = sorted({name for name in rows[0] if rows[0].count(name) > 1})
    if twice:
        raise ValueError(f"{path} has two columns called {twice[0]!r}; give each a name of its own")
    uneven = next((index for index, row in enumerate(rows) if len(row) != len(rows[0])), None)
    if uneven is not None:
        raise ValueError(f"{path}: row {uneven} has {len(rows[uneven])} fields where the first line has {len(rows[0])}")
    return {name: [row[place].strip() for row in rows[1:]] for place, name in enumerate(rows[0])}


def _parquet_columns(path: Path) -> dict[str, list[str]] | None:
    parquet = import_extra("pyarrow.parquet", package="pyarrow")
    try:
        schema = parquet.read_schema(path)
        kinds = {name: str(schema.field(name).type) for name in schema.names}
        known = (*PATHS, *LABELS, *SPLITS)
        if any(kind.startswith(("struct", "binary")) for name, kind in kinds.items() if name.strip().lower() in known):
            return None
        wanted = [name for name, kind in kinds.items() if not kind.startswith(("struct", "binary", "map"))]
        table = parquet.read_table(path, columns=wanted)
        return {name: [_text(value) for value in table.column(name).to_pylist()] for name in wanted}
    except Exception as error:  # pyarrow's own kinds, which it derives differently from version to version
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk, not of the file's content
        raise ValueError(f"{path} is not a Parquet file, or is damaged ({error})") from error


def _text(value: Any) -> str:
    """Return a cell as a CSV file would have it; a list is joined as several labels are."""
    if value is None:
        return ""
    return "|".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def import_extra(module: str, *, package: str) -> Any:
    """Import a package of the extra `stream`, or say how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {package}: pip install 'saccade[stream]'") from error
