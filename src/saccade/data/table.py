"""Tables that list samples: columns of text by name, from CSV, TSV or Parquet, and how tasks find theirs."""

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

LISTS = (".csv", ".tsv", ".parquet")  # files that are lists
PATHS = ("path", "image", "file", "filename", "file_name", "image_path", "filepath")
SPLITS = ("split", "set", "subset")
LABELS = ("label", "class", "class_name", "target")
ROLES = ("image", "label", "labels", "numbers", "mask", "split")  # that columns can be named for


@dataclass(frozen=True)
class Table:
    """Columns of a list."""

    path: Path
    columns: dict[str, list[str]]  # texts by the column's name, as many in each
    train: np.ndarray  # rows of the training part, of which the outputs are those that can be learned, N bool
    parts: tuple[str, str] = ("train", "val")  # what the file calls the training part and the validation part

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

    def require(self, columns: Iterable[str]) -> None:
        """Refuse a table without some of the columns that were asked for."""
        if missing := [name for name in columns if name not in self.columns]:
            raise self.refuse(f"the columns {abbreviate(missing)}, which were asked for")

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


def rename_columns(path: Path, columns: dict[str, list[str]], roles: Mapping[str, str]) -> dict[str, list[str]]:
    """Return a list's columns under the names they are to be read by; one that has such a name already gives way.

    Args:
        roles: names of columns by what they are to be read as, as in {"image": "name", "label": "breed"}; several
            columns of labels or numbers, "edema|fracture", are all that is learned.
    """
    named = {role: name.split("|") for role, name in roles.items()}
    missing = [name for names in named.values() for name in names if name not in columns]
    if missing:
        raise ValueError(
            f"{path} has the columns {abbreviate(list(columns), most=20)}, and {abbreviate(missing)} was named"
            f"{nearest(missing[0], columns)}"
        )
    several = {role: names for role, names in named.items() if role == "numbers" or len(names) > 1}
    wrong = [role for role in several if role not in ("numbers", "labels")]
    if wrong:
        raise ValueError(
            f"{wrong[0]}={'|'.join(named[wrong[0]])} was given; only labels and numbers have several columns"
        )
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
    """Return which columns of a list are to be read as what for a model that was trained on named ones.

    Another set than a list has none. Images and splits may have their usual names here; a target is never looked for
    under another name than in training, since that could be another one.

    Args:
        spec: samples, as `open_data` takes them.
        trained: names of columns by what they were read as in training.
    """
    path = Path(spec).expanduser()
    if not trained or path.suffix.lower() not in LISTS or not path.is_file():
        return {}
    columns = read_columns(path) or {}
    absent = {role for role, names in trained.items() if not all(name in columns for name in names.split("|"))}
    for role in sorted(absent - {"image", "split"}):
        raise ValueError(
            f"{path} has the columns {abbreviate(list(columns), most=20)}, and the model was trained with {role}="
            f"{trained[role]}; name the column that holds it here with --columns {role}=NAME, or rename it in the list"
        )
    return {role: name for role, name in trained.items() if role not in absent}


def _alike(roles: Iterable[str]) -> set[str]:
    """Return all names that are read as one of some roles."""
    groups = (PATHS, SPLITS, LABELS)
    return {name for role in roles for name in next((group for group in groups if role in group), (role,))}


def parse_columns(given: str | Mapping[str, str]) -> dict[str, str]:
    """Read "image=name,label=breed"."""
    if not isinstance(given, str):
        return dict(given)
    pairs = [part.partition("=") for part in given.split(",")]
    roles = [role.strip() for role, _, _ in pairs]
    if not all(role.strip() and name.strip() for role, _, name in pairs) or len(set(roles)) < len(roles):
        raise ConfigError(f"columns={given!r} was given; write it as image=name,label=breed, each once")
    strange = next((role for role in roles if role not in ROLES), None)
    if strange is not None:
        raise ConfigError(
            f"columns={given!r} was given; {strange} is none of {', '.join(ROLES)}{nearest(strange, ROLES)}"
        )
    return {role: name.strip() for role, (_, _, name) in zip(roles, pairs, strict=True)}


def find_delimiter(file: TextIO, path: Path) -> str:
    """Return what parts the cells of an opened table: spreadsheets of half the world write semicolons as CSV."""
    first = file.readline()
    file.seek(0)
    if path.suffix.lower() == ".tsv":
        return "\t"
    return max((",", ";", "\t"), key=first.count)  # the comma where there is none of them


def _csv_columns(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file, delimiter=find_delimiter(file, path)))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8 ({error}); save it as one") from error
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
