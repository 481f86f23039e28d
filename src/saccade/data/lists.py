"""Lists of samples: CSV, TSV or Parquet files with a column of image paths and columns of targets."""

import os
from pathlib import Path

import numpy as np

from ..support.wording import count_are
from .image import EXTENSIONS
from .reader import ReadOptions, register_reader
from .source import FileSource, Splits
from .split import abbreviate, choose_split
from .table import LISTS, PATHS, SPLITS, Table, read_columns, rename_columns
from .targets import Targets

FOLDERS = (
    "",
    "images/",
    "image/",
    "imgs/",
    "img/",
    "pictures/",
    "photos/",
    "jpg/",
)  # folders that are searched for a list's images


@register_reader("list")
class ListReader:
    """A .csv, .tsv or .parquet file of paths; the task determines the target columns."""

    rank = 80

    def matches(self, spec: str, path: Path) -> bool:  # noqa: ARG002
        """Whether the spec names such a file."""
        return path.suffix.lower() in LISTS and path.is_file()

    def open(self, spec: str, path: Path, options: ReadOptions) -> Splits:  # noqa: ARG002
        """Open the dataset."""
        return open_list(path, options)


def open_list(path: Path, options: ReadOptions) -> Splits:
    """Open a list of samples; paths are relative to the list's folder.

    Missing images stay in the list, so that indices do not change; reading them reports the fault.

    Args:
        path: a file with a column path (image, file, filename), the task's columns and optionally split.
        options: how targets are read, and the share of images that may be missing; one always may, unless it is half of
            them.
    """
    columns = read_columns(path)
    if columns is None:
        if options.columns:
            raise ValueError(f"columns has no effect: {path} contains its images; remove it")
        from .hub import open_parquet

        return open_parquet(path)
    everything = Table(path, columns, np.ones(len(next(iter(columns.values()), [])), dtype=bool))
    columns = rename_columns(path, columns, options.columns)
    names, roles, parts, notes = name_rows(path, columns)
    chosen = np.flatnonzero([role is not None for role in roles])
    train = np.array([roles[row] == "train" for row in chosen])
    together = None
    if options.group is not None:
        together = everything.find((options.group.strip().lower(),))
        if together is None:
            raise everything.refuse(f"a column {options.group!r}, as given by --group")
        if "" in together:
            row = together.index("")
            raise ValueError(f"{path}: row {row + 1} has no {options.group}; fill it in, or remove the row")
        columns = {name: values for name, values in columns.items() if values is not together}
    cells = {name: [values[row] for row in chosen] for name, values in columns.items() if values}
    kept = Table(path, cells, train, parts)
    targets = options.read_targets(kept)
    names = [names[row] for row in chosen]
    notes += (*targets.notes, *_missing(path, names, options.bad_limit), *_repeated(names, targets))
    val = np.flatnonzero(~train)
    both = sorted({names[row] for row in np.flatnonzero(train)} & {names[row] for row in val})
    if both:
        notes += (
            f"{count_are(len(both), 'image')} listed in both the training and the validation split: {abbreviate(both)}",
        )
    source = FileSource(path.parent, names, targets)
    groups = None if together is None else [together[row] for row in chosen]
    if groups is not None:
        shared = sorted({groups[row] for row in np.flatnonzero(train)} & {groups[row] for row in val})
        if shared:
            raise ValueError(
                f"{path}: {len(shared)} values of the column {options.group!r} have samples in both splits: "
                f"{abbreviate(shared)}; assign each to one split, or remove the column of splits"
            )
    return Splits(
        source.subset(np.flatnonzero(train)),
        source.subset(val) if len(val) else None,
        notes,
        None if groups is None else tuple(groups[row] for row in np.flatnonzero(train)),
    )


Rows = tuple[list[str], list[str | None], tuple[str, str], tuple[str, ...]]


def name_rows(path: Path, columns: dict[str, list[str]]) -> Rows:
    """Return every row's image name and split, the list's names of the two splits, and remarks."""
    everything = Table(path, columns, np.ones(len(next(iter(columns.values()), [])), dtype=bool))
    listed = everything.find(PATHS)
    if listed is None:
        raise everything.refuse(f"a column named {' or '.join(PATHS[:4])}")
    names, found = _find_files(path, [_relative(name, path) for name in listed])
    if not names:
        raise ValueError(f"{path} lists no images")
    blank = next((row for row, name in enumerate(names) if not name), None)
    if blank is not None:
        raise everything.blank(blank)
    roles, parts, notes = _roles(path, everything.find(SPLITS), len(names))
    return names, roles, parts, (*notes, *found)


def _roles(
    path: Path, splits: list[str] | None, count: int
) -> tuple[list[str | None], tuple[str, str], tuple[str, ...]]:
    """Return every row's split (None: neither), the file's names of the two splits, and remarks."""
    if not splits:
        return ["train"] * count, ("train", "val"), ()
    roles, notes = choose_split(sorted(set(splits)))
    if not roles:
        raise ValueError(f"{path}: the splits are {abbreviate(sorted(set(splits)))}; one of them should be 'train'")
    by_name = {name: role for role, name in roles.items()}
    return [by_name.get(split) for split in splits], (roles["train"], roles.get("val", "val")), notes


def _missing(path: Path, names: list[str], bad_limit: float) -> tuple[str, ...]:
    """Return a remark on missing images, or refuse the list if too many are missing."""
    missing = [name for name in names if not os.path.exists(path.parent / name)]
    if not missing:
        return ()
    if len(missing) > max(bad_limit * len(names), 1) or 2 * len(missing) >= len(names):
        raise FileNotFoundError(
            f"{path}: {len(missing)} of {len(names)} listed images do not exist: {abbreviate(missing)}; paths are "
            f"relative to {path.absolute().parent}. Move the list, restore the images, or remove their rows"
        )
    return (f"{len(missing)} of {len(names)} listed images do not exist: {abbreviate(missing)}",)


def _find_files(path: Path, names: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return names completed by the folder or extension that the list leaves out, and a remark."""
    first = next((name for name in names if name), "")
    if not first or os.path.exists(path.parent / first):
        return names, ()
    for folder in FOLDERS:
        for ending in ("", *EXTENSIONS):
            if (folder or ending) and os.path.isfile(path.parent / folder / f"{first}{ending}"):
                lacks = "their ending" if ending else "their folder"
                note = f"images are listed without {lacks}: {folder}NAME{ending} is read"
                return [f"{folder}{name}{ending}" if name else "" for name in names], (note,)
    return names, ()


def _repeated(names: list[str], targets: Targets) -> tuple[str, ...]:
    """Return remarks on images that are listed more than once."""
    found: dict[str, set[bytes]] = {}
    again: dict[str, None] = {}
    for name, row in zip(names, targets.rows, strict=True):
        if name in found:
            again[name] = None
        found.setdefault(name, set()).add(np.asarray(row).tobytes())
    mixed = [name for name in again if len(found[name]) > 1]
    notes = [f"{count_are(len(again), 'image')} listed more than once: {abbreviate(list(again))}"] if again else []
    notes += [f"{count_are(len(mixed), 'image')} listed with different labels: {abbreviate(mixed)}"] if mixed else []
    return tuple(notes)


def _relative(name: str, path: Path) -> str:
    """Return a path relative to the list, with forward slashes; absolute paths elsewhere are kept."""
    if not name or (os.path.isabs(name) and not Path(name).is_relative_to(path.parent)):
        return name
    return os.path.relpath(path.parent / name, path.parent).replace(os.sep, "/")
