"""Names of images, one after another: a million of them take no more memory than one."""

import heapq
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from ..data.image import EXTENSIONS

PART = 65536  # names of one folder that are held at a time
LONGEST = 65536  # bytes of a name in a list; more is no list of names


class NoImages(ValueError):  # noqa: N818
    """Nothing was given that could be an image."""


def find_paths(given: Iterable[str | Path], *, null: bool = False, stdin: BinaryIO | None = None) -> Iterator[Path]:
    """Yield the files that are named: files as they are, the images of folders, `-` for a list on standard input.

    Args:
        given: files, folders or `-`. A file named outright is taken whatever its ending; one that is not there comes
            out as well, to be reported as bad.
        null: names on standard input end with a zero byte, as `find -print0` writes them, not with a line.
        stdin: to read in the place of standard input.
    """
    for item in given:
        if str(item) == "-":
            yield from read_names(stdin or sys.stdin.buffer, null=null)
        elif os.path.isdir(item):
            yield from walk(os.fspath(item))
        else:
            yield Path(item)


def count_paths(given: Iterable[str | Path]) -> int | None:
    """Return how many files `find_paths` will yield, None where a list on standard input leaves that open."""
    given = list(given)
    return None if "-" in map(str, given) else sum(1 for _ in find_paths(given))


def walk(folder: str) -> Iterator[Path]:
    """Yield the images under a folder by their endings, sorted within each folder; hidden ones are passed over.

    Links to folders are not followed, so a ring of links has an end. A folder that cannot be listed comes out itself,
    to be reported as bad.
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
    """Yield names of a folder, sorted, and whether they are folders; a large one is read again for every next part."""
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
    """Yield the names that a list holds, in bytes, ended by a line or a zero byte; empty ones are passed over."""
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
                f"the list on standard input has no {kind} in {LONGEST} bytes, so it lists no files; try {other}"
            )
    if name := _trimmed(rest, null):
        yield Path(os.fsdecode(name))


def _trimmed(name: bytes, null: bool) -> bytes:
    return name if null else name.rstrip(b"\r")
