"""Files for correcting probably wrong labels: a page, a table, and the corrected list."""

import csv
import os
import shlex
from pathlib import Path

import numpy as np

from ..data.image import BadSample
from ..data.source import FileSource, Source
from ..data.table import find_delimiter
from ..report import encode_image, grid, paragraph, render_page, tag
from ..report.markup import Html, join
from ..report.page import Section, next_section
from ..settings import ConfigError
from ..support.files import whole_file, write_text
from .suspects import Suspect, Suspects

MAX_IMAGES_SHOWN = 200  # most images on the page
COLUMNS = ("place", "name", "given", "label", "probability_wrong", "probability_of_given", "probability_of_likely")


def write_suspects(suspects: Suspects, out: Path) -> tuple[Path, Path]:
    """Write a page with the images and a table whose column `label` can be corrected; existing files are replaced."""
    out.mkdir(parents=True, exist_ok=True)
    table, page = out / "suspects.csv", out / "suspects.html"
    with whole_file(table) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for one in suspects.suspects:
            numbers = (f"{value:.4f}" for value in (one.wrong, one.of_given, one.of_likely))
            writer.writerow([one.place, one.name, one.given, one.likely, *numbers])
    write_text(page, _page(suspects, table))
    return page, table


def _page(suspects: Suspects, table: Path) -> str:
    """Render the page: most probable errors first, each with its label and its likely class."""
    pairs: dict[str, int] = {}
    for one in suspects.suspects:
        pair = f"{one.given} → {one.likely}"
        pairs[pair] = pairs.get(pair, 0) + 1
    often = sorted(pairs.items(), key=lambda item: -item[1])[:10]
    shown = [_figure(one, suspects.source) for one in suspects.suspects[:MAX_IMAGES_SHOWN]]
    rest = len(suspects.suspects) - len(shown)
    more = paragraph(f"{rest} more are in {table.name}") if rest > 0 else None
    how = f"Every image was predicted by {suspects.trainings} run{'s' * (suspects.trainings != 1)} not trained on it. "
    lead = paragraph(f"{suspects.sentence[:1].upper()}{suspects.sentence[1:]}.", class_="lead")
    kind = "Labels that are probably wrong"
    if not suspects.suspects:
        next_ = next_section(
            {f"saccade data check {shlex.quote(suspects.data.name)}": "check for other problems of the dataset"}
        )
        return render_page(suspects.data.name, [Section("how", "How", paragraph(how)), next_], kind=kind, lead=lead)
    how += (
        f"Correct the column label of {table.name}: it contains the most probable class; removing a row keeps the "
        "label of that image."
    )
    asked = f"saccade data check --answers {shlex.quote(suspects.answers)} --out {shlex.quote(str(table.parent))}"
    commands = {
        f"{asked} --fix corrected.csv": "the dataset's list with the corrected labels",
        "saccade train corrected.csv": "train on it",
    }
    sections = [
        Section("frequent", "Most frequent", tag("ul", *(tag("li", f"{pair}: {count}") for pair, count in often))),
        Section("pictures", "Images", join(grid(*shown), more)),
        Section("how", "How", paragraph(how)),
        next_section(commands),
    ]
    return render_page(suspects.data.name, sections, kind=kind, lead=lead)


def _figure(one: Suspect, source: Source) -> Html:
    try:
        image = encode_image(source.read(one.place), alt=f"labelled {one.given}")
    except (BadSample, ValueError):
        image = tag("span", "cannot be read")
    words = (tag("strong", one.likely), f" rather than {one.given}, {one.wrong:.0%}", tag("br"), one.name)
    return tag("figure", image, tag("figcaption", *words))


def read_corrections(file: Path, source: Source) -> dict[int, int]:
    """Read the corrected table, which may be shortened; return classes by sample index."""
    if not file.is_file():
        raise ConfigError(f"{file} does not exist; create it with saccade data check --answers, and correct it")
    known = {name: place for place, name in enumerate(source.outputs)}
    found = {}
    with file.open(newline="", encoding="utf-8-sig") as opened:
        for number, row in enumerate(csv.DictReader(opened, delimiter=find_delimiter(opened, file)), start=2):
            place, label = row.get("place") or "", (row.get("label") or "").strip()
            if not place.isdecimal() or int(place) >= len(source) or source.name(int(place)) != row.get("name"):
                raise ConfigError(f"{file}, line {number}: no sample has place {place!r} and name {row.get('name')!r}")
            if label not in known:
                raise ConfigError(
                    f"{file}, line {number}: {label!r} is not a class; the classes are {', '.join(known)}"
                )
            found[int(place)] = known[label]
    return found


def fix_labels(suspects: Suspects, table: Path, out: Path) -> int:
    """Write a list (.csv), or an archive (.npz) for arrays, with corrected labels; return the number of changes."""
    if out.exists():
        raise ConfigError(f"{out} already exists; choose another file name")
    corrections = read_corrections(table, suspects.source)
    source = suspects.source
    labels = source.labels.copy()
    labels[list(corrections)] = list(corrections.values())
    changed = int((labels != source.labels).sum())
    array = source.array()
    out.parent.mkdir(parents=True, exist_ok=True)
    if array is not None:
        if out.suffix != ".npz":
            raise ConfigError(f"{out}: the images are in an array, so the corrected dataset must be an .npz file")
        with whole_file(out) as draft, draft.open("wb") as file:
            np.savez(file, x_train=array, y_train=labels, classes=np.array(source.outputs))
        return changed
    if out.suffix != ".csv" or not isinstance(source, FileSource):
        raise ConfigError(f"{out}: a corrected list is a .csv file, and needs images in files")
    data = suspects.data
    parts: list[tuple[Source, str, np.ndarray]] = [(source, "train", labels)]
    if data.whole is None and isinstance(data.train, Source):  # the suspects are from the held-out part
        parts = [(data.train, "train", data.train.labels), (source, "val", labels)]
    if data.unused is not None:
        parts.append((data.unused, "val", data.unused.labels))
    with whole_file(out) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "label", "split"))
        for part, split, own in parts:
            for index, label in enumerate(own):
                writer.writerow((os.path.relpath(str(part.raw(index)), out.parent), part.outputs[label], split))
    return changed
