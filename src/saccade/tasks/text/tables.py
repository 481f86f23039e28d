"""Tables of texts: GLUE's TSV, CSV, JSON lines, Parquet, and Hugging Face datasets."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...data.table import find_delimiter, import_extra
from ...support.telling import tell_large

ENDINGS = (".tsv", ".csv", ".jsonl", ".json", ".parquet")
COLA = ("source", "label", "mark", "sentence")  # columns of CoLA's files, which have no header
MAX_CELL_CHARS = 2**24  # most characters of a cell

Columns = dict[str, list[str]]


def read_columns(path: Path) -> Columns:
    """Read a file's columns as text by name; missing values are empty."""
    kind = path.suffix.lower()
    if kind not in ENDINGS:
        raise ValueError(f"{path} has an unknown file type; texts are read from {', '.join(ENDINGS)} files")
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give a file of texts, or a folder with train and dev files")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty; it should hold texts and their labels")
    tell_large(path)
    columns = {".tsv": _tsv, ".csv": _csv, ".parquet": _parquet}.get(kind, _jsonl)(path)
    if not columns or not next(iter(columns.values())):
        raise ValueError(f"{path} has column names but no texts; add rows")
    return columns


def find_column(columns: Columns, names: Sequence[str]) -> str | None:
    """Return the column with the first of some names, ignoring case; None if there is none."""
    known = {name.strip().lower(): name for name in columns}
    return next((known[name] for name in names if name in known), None)


def part_of(columns: Columns, split: Sequence[str], parts: Sequence[str]) -> Columns:
    """Return the rows whose column `split` has one of the given values."""
    rows = [row for row, part in enumerate(split) if part in parts]
    return {name: [cells[row] for row in rows] for name, cells in columns.items()}


def of_dataset(dataset: Any) -> Columns:
    """Return the columns of a Hugging Face dataset, with class names."""
    found: Columns = {}
    for name, feature in dataset.features.items():
        kind = str(getattr(feature, "dtype", ""))
        names = getattr(feature, "names", None)
        if names:
            found[name] = [names[value] if 0 <= value < len(names) else "" for value in dataset[name]]
        elif kind in ("string", "large_string", "bool") or kind.startswith(("int", "uint", "float")):
            found[name] = [_text(value) for value in dataset[name]]
    return found


def open_hub(spec: str) -> dict[str, Columns]:
    """Open `hf:NAME[:CONFIG]`; the library may download it."""
    name, _, config = spec.partition(":")[2].partition(":")
    if not name:
        raise ValueError(
            f"{spec!r} does not name a dataset; write hf:NAME or hf:NAME:CONFIG, such as hf:nyu-mll/glue:cola"
        )
    return _splits(import_extra("datasets", package="datasets").load_dataset(name, config or None))


def open_saved(path: Path) -> dict[str, Columns]:
    """Open a folder saved by `datasets`."""
    return _splits(import_extra("datasets", package="datasets").load_from_disk(str(path)))


def _splits(found: Any) -> dict[str, Columns]:
    named = dict(found) if hasattr(found, "keys") else {"train": found}
    return {name: of_dataset(dataset) for name, dataset in named.items()}


def _tsv(path: Path) -> Columns:
    """Read a TSV file in GLUE's dialect, without quoting."""
    rows = [line.split("\t") for line in _lines(path)]
    first = [cell.strip() for cell in rows[0]]
    if len(first) == len(COLA) and first[1] in ("0", "1") and first[2] in ("", "*"):
        return _by_name(path, [list(COLA), *rows])
    return _by_name(path, rows)


def _csv(path: Path) -> Columns:
    limit = csv.field_size_limit(MAX_CELL_CHARS)  # a global limit, restored below
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file, delimiter=find_delimiter(file, path), strict=True) if row]
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error
    except csv.Error as error:
        raise ValueError(
            f"{path} is not valid CSV ({error}): every opening quote needs a closing one, and quotes inside a text "
            "must be doubled. Correct the file, or save it as .tsv, where quotes have no meaning"
        ) from error
    finally:
        csv.field_size_limit(limit)
    if not rows:
        raise ValueError(f"{path} is empty; its first line must name the columns, such as sentence,label")
    return _by_name(path, rows)


def _jsonl(path: Path) -> Columns:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{path}: line {number} is not JSON ({error}); a file of texts has one object per line, such as "
                '{"text": "...", "label": "..."}'
            ) from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}: line {number} is not a JSON object; write one object per line")
        rows.append(row)
    found = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    # Columns of lists and objects are dropped.
    nested = {name: [isinstance(value, list | dict) for value in values] for name, values in found.items()}
    for name in (name for name, rows_of in nested.items() if any(rows_of) and not all(rows_of)):
        number = nested[name].index(True) + 1
        raise ValueError(
            f"{path}: row {number} has a list or an object in the column {name!r}, where other rows have a text"
        )
    return {name: [_text(value) for value in values] for name, values in found.items() if not all(nested[name])}


def _parquet(path: Path) -> Columns:
    parquet = import_extra("pyarrow.parquet", package="pyarrow")
    try:
        table = parquet.read_table(path)
        kinds = {name: str(table.schema.field(name).type) for name in table.column_names}
        plain = [name for name, kind in kinds.items() if not kind.startswith(("struct", "list"))]
        return {name: [_text(value) for value in table.column(name).to_pylist()] for name in plain}
    except Exception as error:  # pyarrow's own kinds, which it derives differently from version to version
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{path} is not a Parquet file, or is damaged ({error})") from error


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error
    # str.splitlines also splits at other characters.
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines and not lines[-1] else lines


def _not_utf8(path: Path, error: UnicodeDecodeError) -> ValueError:
    return ValueError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8")


def _by_name(path: Path, rows: Sequence[Sequence[str]]) -> Columns:
    head = [name.strip() for name in rows[0]]
    twice = sorted({name for name in head if head.count(name) > 1})
    if twice:
        raise ValueError(f"{path} has two columns named {twice[0]!r}; give each its own name")
    for number, row in enumerate(rows[1:], 1):
        if len(row) != len(head):
            raise ValueError(
                f"{path}: row {number} has {len(row)} cells, but the first line has {len(head)}; check for an extra "
                "tab or comma, or an unclosed quote"
            )
    return {name: [row[place].strip() for row in rows[1:]] for place, name in enumerate(head)}


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and value != value):
        return ""
    return str(value).strip() if not isinstance(value, float) or not value.is_integer() else str(int(value))
