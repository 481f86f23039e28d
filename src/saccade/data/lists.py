"""Lists of pictures: CSV, TSV or Parquet with a column for the path and one for the class."""

import csv
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from .held_out import some
from .source import FileSource
from .split import Splits, choose_split

PATHS = ("path", "image", "file", "filename", "file_name", "image_path", "filepath")
LABELS = ("label", "class", "class_name", "target")
SPLITS = ("split", "set", "subset")


def open_list(path: Path, *, bad_limit: float = 0.05) -> Splits:
    """Open a list of pictures; their paths are relative to the list's folder.

    A few pictures that are not there stay in the list, so that the others keep their places; reading says so.

    Args:
        path: a .csv, .tsv or .parquet file with columns path (image, file, filename), label (class) and perhaps split.
        bad_limit: share of pictures that may be missing; one always may, unless it is half of them.
    """
    if path.suffix.lower() == ".parquet":
        table = _parquet_columns(path)
        if table is None:
            return import_module("saccade.data.hub").open_parquet(path)
    else:
        table = _csv_columns(path)
    names = [_relative(name, path) for name in _column(table, PATHS, path)]
    labels = _column(table, LABELS, path)
    blank = [index for index, (name, label) in enumerate(zip(names, labels, strict=True)) if not name or not label]
    if blank:
        raise ValueError(f"{path}: row {blank[0] + 1} has an empty path or label; fill it or take it out")
    if not names:
        raise ValueError(f"{path} lists no pictures")
    notes = (*_missing(path, names, bad_limit), *_repeated(names, labels))
    return _split(path, names, labels, _column(table, SPLITS, path, needed=False), notes)


def _missing(path: Path, names: list[str], bad_limit: float) -> tuple[str, ...]:
    """Return a remark on the pictures that are not there, or refuse the list if it is its folder that must be wrong."""
    missing = [name for name in names if not (path.parent / name).exists()]
    if not missing:
        return ()
    if len(missing) > max(bad_limit * len(names), 1) or 2 * len(missing) >= len(names):
        raise FileNotFoundError(
            f"{path} lists {len(missing)} of {len(names)} pictures that are not there: {some(missing)}; paths are "
            f"relative to {path.parent}. Put the list where they are right, bring the pictures back, or take them out"
        )
    return (f"{len(missing)} of {len(names)} listed pictures are not there and cannot be read: {some(missing)}",)


def _repeated(names: list[str], labels: list[str]) -> tuple[str, ...]:
    """Return remarks on pictures that are listed more than once."""
    found: dict[str, set[str]] = {}
    again: dict[str, None] = {}
    for name, label in zip(names, labels, strict=True):
        if name in found:
            again[name] = None
        found.setdefault(name, set()).add(label)
    mixed = [name for name in again if len(found[name]) > 1]
    notes = [f"{len(again)} pictures are listed more than once: {some(list(again))}"] if again else []
    notes += [f"{len(mixed)} pictures are listed with different labels: {some(mixed)}"] if mixed else []
    return tuple(notes)


def _split(path: Path, names: list[str], labels: list[str], splits: list[str], notes: tuple[str, ...]) -> Splits:
    roles: dict[str, str] = {}
    if splits:
        roles, more = choose_split(sorted(set(splits)))
        notes = more + notes
        if not roles:
            raise ValueError(f"{path}: the splits are {some(sorted(set(splits)))}; one of them should be 'train'")
    chosen = [index for index in range(len(names)) if not splits or splits[index] in roles.values()]
    classes = _ordered({labels[index] for index in chosen if not splits or splits[index] == roles["train"]})

    def source(keep: Sequence[int], named: tuple[str, ...]) -> FileSource:
        lookup = {name: index for index, name in enumerate(named)}
        indices = np.array([lookup[labels[index]] for index in keep], dtype=np.int64)
        return FileSource(path.parent, [names[index] for index in keep], indices, classes=named)

    if "val" not in roles:
        return Splits(source([i for i in chosen if not splits or splits[i] == roles["train"]], classes), None, notes)
    train = [index for index in chosen if splits[index] == roles["train"]]
    val = [index for index in chosen if splits[index] == roles["val"]]
    unknown = _ordered({labels[index] for index in val} - set(classes))
    if unknown:
        raise ValueError(
            f"{path}: the split {roles['val']!r} has labels that {roles['train']!r} lacks: {some(unknown)}; the "
            f"training labels are {some(classes)}"
        )
    both = sorted({names[index] for index in train} & {names[index] for index in val})
    if both:
        notes += (f"{len(both)} pictures are listed for training and for validation: {some(both)}",)
    return Splits(source(train, classes), source(val, classes), notes)


def _column(table: dict[str, list[str]], known: Sequence[str], path: Path, needed: bool = True) -> list[str]:
    for name in known:
        for given, values in table.items():
            if given.strip().lower() == name:
                return values
    if needed:
        raise ValueError(
            f"{path} has the columns {some(list(table), most=20)}; it needs one named {' or '.join(known[:4])}"
        )
    return []


def _csv_columns(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ","))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8 ({error})") from error
    rows = [row for row in rows if row]
    if not rows:
        raise ValueError(f"{path} is empty; its first line names the columns, such as path,label")
    uneven = next((index for index, row in enumerate(rows) if len(row) != len(rows[0])), None)
    if uneven is not None:
        raise ValueError(f"{path}: row {uneven} has {len(rows[uneven])} fields where the first line has {len(rows[0])}")
    return {name: [row[place].strip() for row in rows[1:]] for place, name in enumerate(rows[0])}


def _parquet_columns(path: Path) -> dict[str, list[str]] | None:
    """Read the columns that name pictures; None if the file holds the pictures themselves."""
    parquet = import_extra("pyarrow.parquet", package="pyarrow")
    try:
        schema = parquet.read_schema(path)
        wanted = [name for name in schema.names if name.strip().lower() in (*PATHS, *LABELS, *SPLITS)]
        if any(str(schema.field(name).type).startswith(("struct", "binary")) for name in wanted):
            return None
        table = parquet.read_table(path, columns=wanted)
    except OSError:
        raise
    except Exception as error:  # pyarrow's own kinds, which it derives differently from version to version
        raise ValueError(f"{path} is not a Parquet file, or is damaged ({error})") from error
    columns = {name: table.column(name).to_pylist() for name in wanted}
    missing = [name for name in schema.names if name not in columns]
    texts = {name: ["" if value is None else str(value) for value in values] for name, values in columns.items()}
    return texts | {name: [] for name in missing}


def import_extra(module: str, *, package: str) -> Any:
    """Import a package of the extra `stream`, or say how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {package}: pip install 'saccade[stream]'") from error


def _relative(name: str, path: Path) -> str:
    """Return a listed path relative to the list, with forward slashes."""
    if not name:
        return ""
    return os.path.relpath(path.parent / name, path.parent).replace(os.sep, "/")


def _ordered(labels: set[str]) -> tuple[str, ...]:
    """Sort labels: as numbers if all of them are."""
    numeric = all(label.isdecimal() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label), label) if numeric else (0, label)))
