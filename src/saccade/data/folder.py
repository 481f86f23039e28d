"""Image folders: one folder a class, optionally inside split folders."""

import os
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from ..support.wording import count_of
from .image import EXTENSIONS
from .reader import ReadOptions, register_reader
from .source import FileSource, Splits
from .split import TEST, TRAIN, VAL, abbreviate, choose_split

LINKS = 5  # links that notes list


@register_reader("folder")
class FolderReader:
    """A folder of class folders."""

    rank = 90

    def matches(self, spec: str, path: Path) -> bool:  # noqa: ARG002
        """Whether the spec has this layout."""
        return path.is_dir()

    def open(self, spec: str, path: Path, options: ReadOptions) -> Splits:  # noqa: ARG002
        """Open the dataset."""
        return open_folder(path)


def open_folder(root: Path) -> Splits:
    """Open a folder of class folders; no image is read.

    Args:
        root: holds `class/*.jpg`, or `train/class/*.jpg` and `val/class/*.jpg`; class folders may hold folders.
    """
    folders = _folders(root)
    roles, notes = choose_split(folders)
    if roles and not _folders(root / roles["train"]):  # a class "train", not a split
        roles, notes = {}, ()
    if not roles:
        if folders and all(name.lower() in TRAIN + VAL + TEST for name in folders):
            raise ValueError(f"{root} has {abbreviate(folders)} but no training images; put them into {root / 'train'}")
        train, more = _list(root, root)
        return Splits(train, None, more)
    train, more = _list(root, root / roles["train"])
    if "val" not in roles:
        return Splits(train, None, notes + more)
    val, also = _list(root, root / roles["val"])
    return Splits(train, val, notes + more + also)


def _list(root: Path, folder: Path) -> tuple[FileSource, tuple[str, ...]]:
    """List the images of class folders; names are relative to the root."""
    names: list[str] = []
    labels: list[int] = []
    found: dict[str, list[str]] = {}
    others = SkippedFiles()
    for name in _folders(folder):
        _require_text(folder, name)
        # One spelling of an accented letter, whichever the file system returns.
        found.setdefault(unicodedata.normalize("NFC", name), []).extend(_image_files(folder / name, others))
    classes = sorted(name for name, files in found.items() if files)
    empty = sorted(name for name, files in found.items() if not files)
    start = len(os.path.join(root, ""))
    for label, name in enumerate(classes):
        paths = sorted(file[start:].replace(os.sep, "/") for file in found[name])
        names += paths
        labels += [label] * len(paths)
    if others.denied and len(classes) < 2:
        raise PermissionError(f"{folder}: {others.notes(folder)[-1]}")
    if not names:
        raise ValueError(_nothing(folder, classes_seen=empty))
    notes = [f"class folders without images, ignored: {abbreviate(empty)} in {folder.name}"] if empty else []
    notes += others.notes(folder)
    loose = sum(1 for _ in _image_files(folder, SkippedFiles(), deep=False))
    if loose:
        notes.append(f"images directly in {folder.name}, outside class folders, ignored: {count_of(loose, 'image')}")
    return FileSource(root, names, np.array(labels), classes=classes), tuple(notes)


@dataclass
class SkippedFiles:
    """Files in class folders that are not read, for the notes."""

    kinds: Counter[str] = field(default_factory=Counter)  # number of other files by extension
    # pipes, devices and sockets named like images, counted by class folder
    odd: Counter[str] = field(default_factory=Counter)
    # links that leave their class folder, and where they lead
    links: list[tuple[str, str]] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)  # folders that may not be read

    def notes(self, folder: Path) -> list[str]:
        """Return remarks; names are relative to the given folder."""
        notes = []
        if self.kinds:
            most = sorted(self.kinds, key=lambda kind: (-self.kinds[kind], kind))[:5]
            kinds = ", ".join(f"{kind or 'no extension'} {self.kinds[kind]}" for kind in most)
            rest = f" and {len(self.kinds) - 5} more kinds" if len(self.kinds) > 5 else ""
            files = f"{count_of(self.kinds.total(), 'file')} in {folder.name}"
            notes.append(f"{files} that are not images, ignored: {kinds}{rest}")
        if self.odd:
            places = ", ".join(f"{count} in {os.path.relpath(name, folder)}" for name, count in self.odd.items())
            notes.append(f"not read: {places} are pipes, devices or sockets with names of images")
        if self.links:
            root = os.path.realpath(folder)
            named = [
                f"{os.path.relpath(link, folder)} points to {os.path.relpath(to, root) if _inside(to, root) else to}"
                for link, to in self.links[:LINKS]
            ]
            more = f" and {len(self.links) - LINKS} more" if len(self.links) > LINKS else ""
            notes.append(
                f"links add images from outside to classes: {_printed(', '.join(named))}{more}. Remove the links if "
                "their images belong to another class"
            )
        if self.denied:
            detail = abbreviate([_printed(os.path.relpath(path, folder)) for path in self.denied])
            notes.append(f"folders that cannot be read, ignored: {detail}; check their permissions")
        return notes


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry))
    except PermissionError:
        raise PermissionError(
            f"{folder} cannot be read: permission denied; give the user who runs this read and execute permission"
        ) from None


def _image_files(folder: Path, others: SkippedFiles, *, deep: bool = True) -> Iterator[str]:
    """Yield the paths of images below a folder, by their extensions.

    Args:
        folder: folder to list; linked folders are followed, each once.
        others: records other files and links.
        deep: whether to list subfolders.
    """
    seen: set[str] = set()
    own = os.path.realpath(folder)
    starts = [str(folder)]
    for start in starts:  # grows by the links found; folders that lie here have their own names before links to them
        links: list[str] = []
        waiting = [start]
        while waiting:
            here = waiting.pop()
            real = os.path.realpath(here)
            if real in seen:
                continue
            seen.add(real)
            if start != starts[0] and here == start and not _inside(real, own):
                others.links.append((here, real))
            try:
                entries = list(os.scandir(here))
            except OSError:
                others.denied.append(here)
                continue
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if _is_folder(entry):
                    (links if entry.is_symlink() else waiting).extend([entry.path] if deep else [])
                elif (kind := os.path.splitext(entry.name)[1].lower()) not in EXTENSIONS:
                    others.kinds[kind] += 1
                elif _is_odd(entry):
                    others.odd[str(folder)] += 1
                else:
                    if start == starts[0] and entry.is_symlink():
                        target = os.path.realpath(entry.path)
                        others.links.extend([] if _inside(target, own) else [(entry.path, target)])
                    yield entry.path
        starts += sorted(links)


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # links in a circle
        return False


def _is_odd(entry: "os.DirEntry[str]") -> bool:
    """Whether an entry is neither a regular file nor a broken link (reading reports the latter)."""
    try:
        return not entry.is_file() and os.path.exists(entry.path)
    except OSError:  # links in a circle
        return False


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def _require_text(folder: Path, name: str) -> None:
    """Refuse a class folder whose name is not valid Unicode, which could not be written to runs and reports."""
    if _printed(name) != name:
        raise ValueError(
            f"{folder} has a class folder whose name is not UTF-8: {_printed(name)}; rename it, for example with "
            "convmv -f latin1 -t utf8 --notest -r FOLDER"
        )


def _printed(name: str) -> str:
    return name.encode(errors="backslashreplace").decode()


def _camera(kinds: list[str]) -> bool:
    """Whether there are phone or camera files that cannot be read, such as HEIC."""
    return bool({".heic", ".heif", ".avif", ".dng", ".cr2", ".nef", ".arw"} & set(kinds))


def _nothing(folder: Path, classes_seen: list[str]) -> str:
    known = " ".join(sorted(EXTENSIONS))
    files = [path.suffix.lower() for path in islice(folder.rglob("*.*"), 10_000) if path.is_file()]
    kinds = ", ".join(f"{kind} {count}" for kind, count in Counter(files).most_common(3))
    there = f" The files there end with {kinds}." if kinds else ""
    if classes_seen:
        return (
            f"the class folders of {folder} ({abbreviate(classes_seen)}) have no images; image file names end with "
            f"one of {known}.{there}{' Save them as JPEG first.' if _camera(files) else ''}"
        )
    lists = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in (".csv", ".tsv", ".parquet", ".json"))
    hint = f" If {abbreviate(lists)} lists images, give the path of that file." if lists else ""
    if any(kind in EXTENSIONS for kind in files):
        return (
            f"the images of {folder} are not in class folders; put those of each class into its own folder, such as "
            f"{folder.name}/cat/1.jpg, or give the parent folder if {folder.name} is a class.{hint}"
        )
    return (
        f"{folder} has no class folders with images; expected one folder per class, such as {folder.name}/cat/1.jpg, "
        f"with files that end with one of {known}.{hint}"
    )
