"""Iterate over image paths in constant memory."""

import heapq
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from ..data.image import EXTENSIONS

PART = 65536  # names of a folder in memory at a time
LONGEST = 65536  # longest name in a list, in bytes


class NoImages(ValueError):  # noqa: N818
    """No images were given."""


def find_paths(given: Iterable[str | Path], *, null: bool = False, stdin: BinaryIO | None = None) -> Iterator[Path]:
    """Yield the given files, the images of folders, and for `-` the names on standard input.

    Args:
        given: files, folders or `-`. Files are yielded whatever their extension; missing ones too, to be reported as
            bad.
        null: names on standard input are separated by zero bytes, as by `find -print0`.
        stdin: replacement of standard input.
    """
    for item in given:
        if str(item) == "-":
            yield from read_names(stdin or sys.stdin.buffer, null=null)
        elif os.path.isdir(item):
            yield from walk(os.fspath(item))
        else:
            yield Path(item)


def count_paths(given: Iterable[str | Path]) -> int | None:
    """Return the number of files that `find_paths` yields; None if names come from standard input."""
    given = list(given)
    return None if "-" in map(str, given) else sum(1 for _ in find_paths(given))


def walk(folder: str) -> Iterator[Path]:
    """Yield the images in a folder and its subfolders by extension, sorted; hidden ones are skipped.

    Links to folders are not followed. A folder that cannot be listed is yielded itself, to be reported as bad.
    """
    try:
        for name, is_folder in _entries(folder):
            path = os.path.join(folder, name)
            if is_folder:
                yield from walk(path)
            elif os.path.splitext(name)[1].lower() in EXTENSIONS:
                yield Path(path)
    except OSError:
        yield Path(folder)


def _entries(folder: str) -> Iterator[tuple[str, bool]]:
    """Yield a folder's sorted names, and whether they are folders; large folders are read in several passes."""
    last = ""
    while True:
        with os.scandir(folder) as found:
            shown = (e for e in found if not e.name.startswith(".") and e.name > last)
            part = heapq.nsmallest(PART, ((e.name, e.is_dir(follow_symlinks=False)) for e in shown))
        yield from part
        if len(part) < PART:
            return
        last = part[-1][0]


def read_names(file: BinaryIO, *, null: bool = False) -> Iterator[Path]:
    """Yield the non-empty names of a list, in bytes, separated by newlines or zero bytes."""
    end = b"\0" if null else b"\n"
    rest = b""
    while block := file.read1(LONGEST) if hasattr(file, "read1") else file.read(LONGEST):
        *whole, rest = (rest + block).split(end)
        for name in whole:
            if name := _trimmed(name, null):
                yield Path(os.fsdecode(name))
        if len(rest) > LONGEST:
            kind, other = ("zero byte", "without --null") if null else ("end of line", "with --null")
            raise NoImages(
                f"the list on standard input has no {kind} within {LONGEST} bytes, so it is not a list of files; "
                f"try {other}"
            )
    if name := _trimmed(rest, null):
        yield Path(os.fsdecode(name))


def _trimmed(name: bytes, null: bool) -> bytes:
    return name if null else name.rstrip(b"\r")
