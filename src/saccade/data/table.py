"""Tables of samples: columns of text from CSV, TSV or Parquet files, and how tasks find theirs."""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ..settings import ConfigError, nearest
from .split import abbreviate
from .targets import ClassTargets, Targets

LISTS = (".csv", ".tsv", ".parquet")  # extensions of lists
PATHS = ("path", "image", "file", "filename", "file_name", "image_path", "filepath")
SPLITS = ("split", "set", "subset")
LABELS = ("label", "class", "class_name", "target")
ROLES = ("image", "label", "labels", "numbers", "mask", "split")  # roles that columns can be mapped to


@dataclass(frozen=True)
class Table:
    """The columns of a list."""

    path: Path
    columns: dict[str, list[str]]  # values by column name, of equal length
    train: np.ndarray  # training rows, which determine the outputs, N bool
    parts: tuple[str, str] = ("train", "val")  # the file's names of the two splits

    def __len__(self) -> int:
        return len(self.train)

    def find(self, known: Sequence[str]) -> list[str] | None:
        """Return the first column with a known name, ignoring case; None if there is none."""
        for name in known:
            for given, values in self.columns.items():
                if given.strip().lower() == name and len(values) == len(self):
                    return values
        return None

    def rest(self) -> list[str]:
        """Return the names of all columns except path and split."""
        return [name for name in self.columns if name.strip().lower() not in (*PATHS, *SPLITS)]

    def require(self, columns: Iterable[str]) -> None:
        """Refuse a table without the given columns."""
        if missing := [name for name in columns if name not in self.columns]:
            raise self.refuse(f"the columns {abbreviate(missing)}, as requested")

    def refuse(self, wanted: str) -> ValueError:
        """Return the error that lists the columns and what is needed."""
        return ValueError(f"{self.path} has the columns {abbreviate(list(self.columns), most=20)}; it needs {wanted}")

    def unknown(self, strange: Sequence[str], known: Sequence[str]) -> ValueError:
        """Return the error for validation labels that do not occur in training."""
        train, val = self.parts
        return ValueError(
            f"{self.path}: the split {val!r} has labels that {train!r} lacks: {abbreviate(strange)}; the training "
            f"labels are {abbreviate(known)}"
        )

    def blank(self, row: int) -> ValueError:
        """Return the error for an empty cell; rows are counted from 1."""
        return ValueError(f"{self.path}: row {row + 1} has an empty path or label; fill it in, or remove the row")


ReadTargets = Callable[[Table], Targets]  # makes a task's targets of a table


def read_classes(table: Table) -> ClassTargets:
    """Return class targets of the column `label`; the training rows determine the classes."""
    labels = table.find(LABELS)
    if labels is None:
        raise table.refuse(f"a column named {' or '.join(LABELS)}")
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
    """Sort labels, numerically if all are numbers."""
    numeric = all(label.isdecimal() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label), label) if numeric else (0, label)))


def read_columns(path: Path) -> dict[str, list[str]] | None:
    """Read a list's columns; None for a Parquet file that contains the images."""
    return _parquet_columns(path) if path.suffix.lower() == ".parquet" else _csv_columns(path)


def rename_columns(path: Path, columns: dict[str, list[str]], roles: Mapping[str, str]) -> dict[str, list[str]]:
    """Rename a list's columns to their roles; a column that already has such a name is dropped.

    Args:
        roles: column names by role, such as {"image": "name", "label": "breed"}; "edema|fracture" selects several
            columns of labels or numbers.
    """
    named = {role: name.split("|") for role, name in roles.items()}
    missing = [name for names in named.values() for name in names if name not in columns]
    if missing:
        raise ValueError(
            f"{path} has the columns {abbreviate(list(columns), most=20)}, but not "
            f"{abbreviate(missing)}{nearest(missing[0], columns)}"
        )
    several = {role: names for role, names in named.items() if role == "numbers" or len(names) > 1}
    wrong = [role for role in several if role not in ("numbers", "labels")]
    if wrong:
        raise ValueError(f"{wrong[0]}={'|'.join(named[wrong[0]])}: only labels and numbers can have several columns")
    renamed = {names[0]: role for role, names in named.items() if role not in several}
    known = (*PATHS, *SPLITS) if several else ()
    kept = {name for names in several.values() for name in names}
    found: dict[str, list[str]] = {}
    for name, values in columns.items():
        role = renamed.get(name)
        hidden = role is None and name.strip().lower() in _alike(renamed.values())
        if role is not None or not (hidden or (several and name not in kept and name.strip().lower() not in known)):
            found[role or name] = values
    return found


def columns_as_trained(spec: str, trained: Mapping[str, str]) -> dict[str, str]:
    """Return the column mapping of a list for a model that was trained with one.

    Other datasets have none. Image and split columns may have default names here; target columns must have the name
    used in training, since another column could mean something else.

    Args:
        spec: dataset, as for `open_data`.
        trained: the column mapping of the training.
    """
    path = Path(spec).expanduser()
    if not trained or path.suffix.lower() not in LISTS or not path.is_file():
        return {}
    columns = read_columns(path) or {}
    absent = {role for role, names in trained.items() if not all(name in columns for name in names.split("|"))}
    for role in sorted(absent - {"image", "split"}):
        raise ValueError(
            f"{path} has the columns {abbreviate(list(columns), most=20)}, but the model was trained with "
            f"{role}={trained[role]}; give the corresponding column with --columns {role}=NAME, or rename it in the "
            "list"
        )
    return {role: name for role, name in trained.items() if role not in absent}


def _alike(roles: Iterable[str]) -> set[str]:
    """Return all column names that are recognised for the given roles."""
    groups = (PATHS, SPLITS, LABELS)
    return {name for role in roles for name in next((group for group in groups if role in group), (role,))}


def parse_columns(given: str | Mapping[str, str]) -> dict[str, str]:
    """Read "image=name,label=breed"."""
    if not isinstance(given, str):
        return dict(given)
    pairs = [part.partition("=") for part in given.split(",")]
    roles = [role.strip() for role, _, _ in pairs]
    if not all(role.strip() and name.strip() for role, _, name in pairs) or len(set(roles)) < len(roles):
        raise ConfigError(
            f"columns={given!r}: expected ROLE=COLUMN pairs such as image=name,label=breed, with each role once"
        )
    strange = next((role for role in roles if role not in ROLES), None)
    if strange is not None:
        raise ConfigError(f"columns={given!r}: {strange} is not one of {', '.join(ROLES)}{nearest(strange, ROLES)}")
    return {role: name.strip() for role, (_, _, name) in zip(roles, pairs, strict=True)}


def find_delimiter(file: TextIO, path: Path) -> str:
    """Return the delimiter of an opened table; spreadsheets in many languages write CSV with semicolons."""
    first = file.readline()
    file.seek(0)
    if path.suffix.lower() == ".tsv":
        return "\t"
    return max((",", ";", "\t"), key=first.count)  # the comma if there is none


def _csv_columns(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file, delimiter=find_delimiter(file, path)))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8 ({error}); save it as one") from error
    rows = [row for row in rows if row]
    if not rows:
        raise ValueError(f"{path} is empty; the first line must name the columns, such as path,label")
    twice = sorted({name for name in rows[0] if rows[0].count(name) > 1})
    if twice:
        raise ValueError(f"{path} has two columns named {twice[0]!r}; rename one of them")
    uneven = next((index for index, row in enumerate(rows) if len(row) != len(rows[0])), None)
    if uneven is not None:
        raise ValueError(f"{path}: row {uneven} has {len(rows[uneven])} fields, but the first line has {len(rows[0])}")
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
    except Exception as error:  # pyarrow's types, whose bases differ between versions
        if isinstance(error, OSError) and error.errno is not None:
            raise  # a disk error, not one of the file's content
        raise ValueError(f"{path} is not a Parquet file, or is damaged ({error})") from error


def _text(value: Any) -> str:
    """Return a cell as in a CSV file; lists are joined like several labels."""
    if value is None:
        return ""
    return "|".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def import_extra(module: str, *, package: str) -> Any:
    """Import a package of the extra `stream`, or raise an error that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {package}: pip install 'saccade[stream]'") from error
