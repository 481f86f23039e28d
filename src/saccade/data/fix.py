"""Write a clean copy of a dataset without the samples that harm training; the source is not changed."""

import csv
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..support.files import whole_folder
from .check import ScannedDataset, same_pixels
from .lists import name_rows
from .source import FileSource
from .table import PATHS, read_columns, rename_columns

LISTED = ("path", "reason")
LEFT_OUT = "left_out.csv"  # file in the copy that lists omitted samples and reasons


@dataclass(frozen=True)
class Fixed:
    """A clean copy."""

    path: Path  # data argument for `saccade train`: the folder, or the list in it
    kept: int  # number of samples
    left_out: tuple[tuple[str, str], ...]  # name and reason of each omitted sample


def write_clean(scanned: ScannedDataset, spec: str, out: Path, columns: Mapping[str, str] | None = None) -> Fixed:
    """Copy the sound samples of a dataset of files into a new folder, completely or not at all."""
    source = Path(spec).expanduser()
    splits = {split: one for split, one in scanned.splits.items() if isinstance(one, FileSource)}
    is_list = source.is_file() and source.suffix.lower() in (".csv", ".tsv", ".parquet")
    rewritten = any(one.targets.repaired for one in splits.values())
    if splits.keys() != scanned.splits.keys() or not (is_list or rewritten or scanned.report.task == "classify"):
        raise ValueError(
            f"fix={out}: {spec or 'the bundled dataset'} is neither class folders nor a list of files or objects; a "
            "clean copy can only be written of these"
        )
    _require_new(out, source)
    dropped = dict(_dropped(scanned))
    left = {(splits[split].name(number), reason) for (split, number), reason in dropped.items()}
    names = {
        split: [one.names[number] for number in range(len(one)) if (split, number) not in dropped]
        for split, one in splits.items()
    }
    places = _places([name for part in names.values() for name in part])
    root = splits["train"].root
    with whole_folder(out) as draft:
        for name, place in places.items():
            _copy(root / name, draft / place)
        if is_list:
            _write_list(draft, source, columns or {}, names, places)
        elif rewritten:
            left |= set(_write_parts(draft, scanned, splits, dropped, places))
        with open(draft / LEFT_OUT, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([LISTED, *sorted(left)])
    kept = sum(map(len, names.values()))
    return Fixed(out / f"{source.stem}.csv" if is_list else out, kept, tuple(sorted(left)))


def _dropped(scanned: ScannedDataset) -> Iterator[tuple[tuple[str, int], str]]:
    """Yield split, index and reason of every omitted sample."""
    for scan in scanned.scans:
        repaired = scanned.splits[scan.split].targets.repaired
        wrong = scan.bad or next((bad for bad in scan.wrong if bad.kind not in repaired), None)
        if wrong is not None:
            yield (scan.split, scan.number), wrong.reason
    for group in same_pixels(scanned.scans):
        labels = sorted({scanned.splits[scan.split].targets.describe(scan.number) for scan in group})
        held = [scan for scan in group if scan.split == "val"]
        keep = (held or group)[0]
        name = scanned.splits[keep.split].name(keep.number)
        for scan in group:
            if len(labels) > 1:
                yield (scan.split, scan.number), f"the same image has the labels {', '.join(labels)}"
            elif scan is not keep:
                part = " in the validation split" if keep.split != scan.split else ""
                yield (scan.split, scan.number), f"it is the same image as {name}{part}"


def _write_parts(
    out: Path,
    found: ScannedDataset,
    splits: Mapping[str, FileSource],
    dropped: Mapping[tuple[str, int], str],
    places: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Write the targets of kept samples; yield what they omit, and what was lost before."""
    for split, source in splits.items():
        looks = [scan for scan in found.scans if scan.split == split and (split, scan.number) not in dropped]
        kept = [(scan.number, places[source.names[scan.number]], (scan.shape[0], scan.shape[1])) for scan in looks]
        yield from source.targets.write_part(out, split, kept)
        yield from ((bad.name, bad.reason) for bad in source.lost)


def _write_list(
    out: Path, path: Path, given: Mapping[str, str], kept: Mapping[str, list[str]], places: Mapping[str, str]
) -> None:
    """Write the list's rows of kept images, with their paths in the copy, and copy their masks."""
    columns = rename_columns(path, read_columns(path) or {}, given)
    names, roles, _, _ = name_rows(path, columns)
    has_splits = len(set(roles)) > 1
    wanted = Counter((split if has_splits else None, name) for split, part in kept.items() for name in part)
    header = next(name for known in PATHS for name in columns if name.strip().lower() == known)
    masks = next((name for name in columns if name.strip().lower() == "mask"), None)
    rows = []
    for number, name in enumerate(names):
        key = (roles[number] if has_splits else None, name)
        if not wanted[key]:
            continue
        wanted[key] -= 1
        row = {column: values[number] for column, values in columns.items()}
        row[header] = places[name]
        if masks is not None:
            row[masks] = f"masks/{number}{Path(row[masks]).suffix}"
            _copy(path.parent / columns[masks][number], out / row[masks])
        rows.append(row)
    with open(out / f"{path.stem}.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)


def _places(names: list[str]) -> dict[str, str]:
    """Return a distinct path in the copy for each file; parts that lead out of the folder are removed."""
    places: dict[str, str] = {}
    taken: set[str] = set()
    for name in dict.fromkeys(names):
        path = Path(name)
        inside = Path(*(part for part in path.parts if part not in ("..", path.anchor)))
        place, again = inside, 1
        while place.as_posix() in taken:
            again += 1
            place = inside.with_stem(f"{inside.stem}-{again}")
        taken.add(place.as_posix())
        places[name] = place.as_posix()
    return places


def _copy(path: Path, to: Path) -> None:
    """Copy a file; with hard links, editing the copy would change the source."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, to)


def _require_new(out: Path, source: Path) -> None:
    """Refuse a folder that exists or is inside an image folder."""
    if out.exists():
        raise ValueError(f"{out} already exists; choose a new directory, so that nothing is overwritten")
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise ValueError(
            f"{out} is inside {source}, so the copies would become part of the dataset; choose a directory outside it"
        )
