"""Write a clean copy of a set: what would spoil training left out, the source left as it is."""

import csv
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..support.files import whole_folder
from .check import LookedThrough, same_pixels
from .lists import name_rows
from .source import FileSource
from .table import PATHS, read_columns, rename_columns

LISTED = ("path", "reason")
LEFT_OUT = "left_out.csv"  # in the copy: what was left out, and why


@dataclass(frozen=True)
class Fixed:
    """A clean copy."""

    path: Path  # what `saccade train` takes: the folder, or the list in it
    kept: int  # how many samples it has
    left_out: tuple[tuple[str, str], ...]  # names of those it lacks, and why


def write_clean(found: LookedThrough, spec: str, out: Path, columns: Mapping[str, str] | None = None) -> Fixed:
    """Copy what is sound of a set of files into a folder that is not there yet; nothing is left half-written."""
    source = Path(spec).expanduser()
    splits = {split: one for split, one in found.splits.items() if isinstance(one, FileSource)}
    is_list = source.is_file() and source.suffix.lower() in (".csv", ".tsv", ".parquet")
    rewritten = any(one.targets.repaired for one in splits.values())
    if splits.keys() != found.splits.keys() or not (is_list or rewritten or found.report.task == "classify"):
        raise ValueError(
            f"fix={out} was given and {spec or 'the embedded set'} is neither class folders nor a list of files or "
            "objects; only of these a clean copy can be written"
        )
    _require_new(out, source)
    dropped = dict(_dropped(found))
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
            left |= set(_write_parts(draft, found, splits, dropped, places))
        with open(draft / LEFT_OUT, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([LISTED, *sorted(left)])
    kept = sum(map(len, names.values()))
    return Fixed(out / f"{source.stem}.csv" if is_list else out, kept, tuple(sorted(left)))


def _dropped(found: LookedThrough) -> Iterator[tuple[tuple[str, int], str]]:
    """Yield split and number of every sample that is left out, and why."""
    for look in found.looks:
        repaired = found.splits[look.split].targets.repaired
        wrong = look.bad or next((bad for bad in look.wrong if bad.kind not in repaired), None)
        if wrong is not None:
            yield (look.split, look.number), wrong.reason
    for group in same_pixels(found.looks):
        labels = sorted({found.splits[look.split].targets.describe(look.number) for look in group})
        held = [look for look in group if look.split == "val"]
        keep = (held or group)[0]
        name = found.splits[keep.split].name(keep.number)
        for look in group:
            if len(labels) > 1:
                yield (look.split, look.number), f"the same image has the labels {', '.join(labels)}"
            elif look is not keep:
                part = " among the validation images" if keep.split != look.split else ""
                yield (look.split, look.number), f"it is the same image as {name}{part}"


def _write_parts(
    out: Path,
    found: LookedThrough,
    splits: Mapping[str, FileSource],
    dropped: Mapping[tuple[str, int], str],
    places: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Write what targets say of the samples that are kept; yield what is left out of it, and what was lost before."""
    for split, source in splits.items():
        looks = [look for look in found.looks if look.split == split and (split, look.number) not in dropped]
        kept = [(look.number, places[source.names[look.number]], (look.shape[0], look.shape[1])) for look in looks]
        yield from source.targets.write_part(out, split, kept)
        yield from ((bad.name, bad.reason) for bad in source.lost)


def _write_list(
    out: Path, path: Path, given: Mapping[str, str], kept: Mapping[str, list[str]], places: Mapping[str, str]
) -> None:
    """Write the rows of a list whose images are kept, with the paths they have in the copy, and copy their masks."""
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
    """Return where files of a set lie in the copy: those from elsewhere without what leads out, each at its own."""
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
    """Copy a file as it is; hard links would let a change of the copy reach the source."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, to)


def _require_new(out: Path, source: Path) -> None:
    """Refuse a folder that is there, or that lies in a folder of images; a list names its own one by one."""
    if out.exists():
        raise ValueError(f"{out} is there; name a folder that is not, so that nothing is overwritten")
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise ValueError(f"{out} lies in {source}, whose images it would become; name a folder beside it")
