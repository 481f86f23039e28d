"""A folder of class folders, with or without folders for training and validation above them."""

import os
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .held_out import some
from .picture import EXTENSIONS
from .reader import ReadOptions, register_reader
from .source import FileSource
from .split import TEST, TRAIN, VAL, Splits, choose_split


@register_reader("folder")
class FolderReader:
    """A folder of class folders."""

    rank = 90

    def matches(self, spec: str, path: Path) -> bool:  # noqa: ARG002
        """Whether it is one."""
        return path.is_dir()

    def open(self, spec: str, path: Path, options: ReadOptions) -> Splits:  # noqa: ARG002
        """Open it."""
        return open_folder(path)


def open_folder(root: Path) -> Splits:
    """List a folder of class folders; no picture is opened.

    Args:
        root: holds `class/*.jpg`, or `train/class/*.jpg` and `val/class/*.jpg`; class folders may hold folders.
    """
    folders = _folders(root)
    roles, notes = choose_split(folders)
    if roles and not _folders(root / roles["train"]):  # pictures of trains
        roles, notes = {}, ()
    if not roles:
        if folders and all(name.lower() in TRAIN + VAL + TEST for name in folders):
            raise ValueError(f"{root} has {some(folders)} but no training pictures; they belong into {root / 'train'}")
        train, more = _list(root, root)
        return Splits(train, None, more)
    train, more = _list(root, root / roles["train"])
    if "val" not in roles:
        return Splits(train, None, notes + more)
    val, also = _list(root, root / roles["val"])
    return Splits(train, val, notes + more + also)


def _list(root: Path, folder: Path) -> tuple[FileSource, tuple[str, ...]]:
    """List the pictures of class folders; names are relative to the root."""
    names: list[str] = []
    labels: list[int] = []
    found: dict[str, list[str]] = {}
    others: Counter[str] = Counter()
    for name in _folders(folder):
        # One spelling of an accented letter, whichever the file system returns.
        found.setdefault(unicodedata.normalize("NFC", name), []).extend(_pictures(folder / name, others))
    classes = sorted(name for name, files in found.items() if files)
    empty = sorted(name for name, files in found.items() if not files)
    start = len(os.path.join(root, ""))
    for label, name in enumerate(classes):
        paths = sorted(file[start:].replace(os.sep, "/") for file in found[name])
        names += paths
        labels += [label] * len(paths)
    if not names:
        raise ValueError(_nothing(folder, classes_seen=empty))
    notes = [f"class folders without pictures, left out: {some(empty)} in {folder.name}"] if empty else []
    if others:
        most = sorted(others, key=lambda kind: (-others[kind], kind))[:5]
        kinds = ", ".join(f"{kind or 'no extension'} {others[kind]}" for kind in most)
        rest = f" and {len(others) - 5} more kinds" if len(others) > 5 else ""
        notes.append(f"{others.total()} files in {folder.name} are no pictures by their names: {kinds}{rest}")
    loose = sum(1 for _ in _pictures(folder, Counter(), deep=False))
    if loose:
        notes.append(f"{loose} pictures directly in {folder.name} are in no class folder and left out")
    return FileSource(root, names, np.array(labels), classes=classes), tuple(notes)


def _folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def _pictures(folder: Path, others: Counter[str], *, deep: bool = True) -> Iterator[str]:
    """Yield the paths of pictures below a folder, by their extensions.

    Args:
        folder: where to look; folders that are linked into it belong to it, each once.
        others: counts the extensions of other files.
        deep: whether to look into the folders inside.
    """
    seen: set[str] = set()
    starts = [str(folder)]
    for start in starts:  # grows by the links found; folders that lie here have their own names before links to them
        links: list[str] = []
        for here, below, files in os.walk(start):
            real = os.path.realpath(here)
            if real in seen:
                below.clear()
                continue
            seen.add(real)
            inner = [os.path.join(here, name) for name in below if deep and not name.startswith(".")]
            links += [path for path in inner if os.path.islink(path)]
            below[:] = [os.path.basename(path) for path in inner if not os.path.islink(path)]
            for name in files:
                kind = os.path.splitext(name)[1].lower()
                if name.startswith("."):
                    continue
                if kind in EXTENSIONS:
                    yield os.path.join(here, name)
                else:
                    others[kind] += 1
        starts += sorted(links)


def _nothing(folder: Path, classes_seen: list[str]) -> str:
    known = " ".join(sorted(EXTENSIONS))
    if classes_seen:
        return (
            f"the class folders of {folder} ({some(classes_seen)}) hold no pictures; a picture's file name ends with "
            f"one of {known}"
        )
    lists = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in (".csv", ".tsv", ".parquet", ".json"))
    hint = f" If {some(lists)} lists pictures, give the path of that file." if lists else ""
    return (
        f"{folder} holds no class folders with pictures; it should hold one folder a class, such as "
        f"{folder.name}/cat/1.jpg, with files that end with one of {known}.{hint}"
    )
