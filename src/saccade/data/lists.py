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


def open_list(path: Path) -> Splits:
    """Open a list of pictures; their paths are relative to the list's folder.

    Args:
        path: a .csv, .tsv or .parquet file with columns path (image, file, filename), label (class) and perhaps split.
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
    missing = [name for name in names if not (path.parent / name).exists()]
    if missing:
        raise FileNotFoundError(
            f"{path} lists {len(missing)} of {len(names)} pictures that are not there: {some(missing)}; paths are "
            f"relative to {path.parent}"
        )
    return _split(path, names, labels, _column(table, SPLITS, path, needed=False))


def _split(path: Path, names: list[str], labels: list[str], splits: list[str]) -> Splits:
    roles: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    if splits:
        roles, notes = choose_split(sorted(set(splits)))
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
