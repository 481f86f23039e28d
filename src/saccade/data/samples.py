"""Samples of a tar shard in WebDataset's layout: consecutive members of one name, `key.jpg` beside `key.cls`."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .held_out import some
from .picture import EXTENSIONS, BadPicture
from .tar import Member, TarError, members


@dataclass(slots=True)
class Entry:
    """An undecoded sample: where it is and, once read, its bytes."""

    shard: int
    name: str
    offset: int
    size: int
    label: int
    data: bytes | None = None


def shard_entries(path: Path, shard: int, classes: Sequence[str]) -> Iterator[Entry | BadPicture]:
    """Yield the samples of one shard; one without picture or label, and the rest of a damaged shard, as BadPicture."""
    lookup = {name: index for index, name in enumerate(classes)}
    try:
        with path.open("rb") as file:
            for key, files in _groups(members(file)):
                name = f"{path.name}/{key}"
                picture = next((member for kind, member in files.items() if f".{kind}" in EXTENSIONS), None)
                if picture is None:
                    if {"cls", "json"} & files.keys():
                        yield BadPicture(name, "the sample has a label but no picture")
                    continue
                label = _label(file, files)
                index = lookup.get(label, int(label) if label.isdecimal() else -1)
                if not 0 <= index < len(classes):
                    known = f"{len(classes)} classes: {some(classes)}"
                    yield BadPicture(
                        name, f"its label {label!r} is none of the {known}" if label else "it has no label"
                    )
                    continue
                yield Entry(shard, name, picture.offset, picture.size, index)
    except (TarError, OSError) as error:
        yield BadPicture(str(path), f"the rest of the shard is lost: {error}", "truncated")


def _groups(found: Iterator[Member]) -> Iterator[tuple[str, dict[str, Member]]]:
    """Group consecutive members by their names up to the first dot of the last part."""
    current, files = "", dict[str, Member]()
    try:
        for member in found:
            folder, _, base = member.name.rpartition("/")
            stem, _, kind = base.partition(".")
            if not stem:
                continue  # a hidden file
            key = f"{folder}/{stem}" if folder else stem
            if key != current and files:
                yield current, files
                files = {}
            current = key
            files[kind.lower().rpartition(".")[2]] = member
    except TarError:
        # The sample that is cut has a picture or a label, not both; what came before it is whole.
        if files and len(files) > 1:
            yield current, files
        raise
    if files:
        yield current, files


def _label(file: BinaryIO, files: dict[str, Member]) -> str:
    """Return the label of a sample as text, empty if there is none."""
    for kind in ("cls", "json"):
        if kind in files:
            file.seek(files[kind].offset)
            text = file.read(files[kind].size).decode(errors="replace").strip()
            if kind == "cls":
                return text
            try:
                content = json.loads(text)
            except ValueError:
                return ""
            content = content if isinstance(content, dict) else {"label": content}
            return str(next((content[key] for key in ("label", "cls", "class") if key in content), "")).strip()
    return ""


def number_classes(shards: Sequence[Path]) -> tuple[list[int], tuple[str, ...]]:
    """Read every label once, as numbers, and return them with names for the classes."""
    labels: list[int] = []
    for path in shards:
        try:
            with path.open("rb") as file:
                for _, files in _groups(members(file)):
                    text = _label(file, files)
                    if text and not text.isdecimal():
                        raise ValueError(
                            f"{path} has the label {text!r}, which is not a number; write the classes' names into a "
                            f"file classes.txt beside the shards, one a line"
                        )
                    labels += [int(text)] if text else []
        except TarError:
            continue  # what is there counts; reading it says what is lost
    if not labels:
        raise ValueError(f"no sample with a label was found in {some([path.name for path in shards])}")
    return labels, tuple(map(str, range(max(labels) + 1)))
