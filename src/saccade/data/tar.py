"""Samples of tar shards in WebDataset's layout: consecutive members `key.jpg` and `key.cls`."""

import json
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..support.files import open_regular
from .image import EXTENSIONS, MAX_BYTES, BadSample
from .split import abbreviate
from .targets import numbered_classes

BLOCK = 512
NAME_BYTES = 65536  # largest long-name record; no file system has longer names
MEASURED = 100  # samples from which the size of all is estimated
LABEL_BYTES = 2**20  # largest .cls or .json member
LABEL_CHARS = 1000  # longest label


class Member(NamedTuple):
    """A file inside a tar: name, offset and size."""

    name: str
    offset: int
    size: int


class TarError(ValueError):
    """A truncated or damaged tar file."""


@dataclass(slots=True)
class Entry:
    """An undecoded sample: its location and, once read, its bytes."""

    shard: int
    name: str
    offset: int
    size: int
    label: int
    data: bytes | None = None


class ShardSize(NamedTuple):
    """Size of a complete shard."""

    size: int  # bytes
    sample: float  # bytes of a sample; 0 if unknown


def shard_entries(
    path: Path, shard: int, classes: Sequence[str], *, usual: Callable[[], ShardSize] = lambda: ShardSize(0, 0)
) -> Iterator[Entry | BadSample]:
    """Yield a shard's samples; samples without image or label, and the rest of a damaged shard, as BadSample.

    Args:
        usual: returns the size of complete shards, from which the number of lost samples is estimated.
    """
    lookup = {name: index for index, name in enumerate(classes)}
    end = 0
    try:
        with open_regular(path) as file:
            for key, files in _groups(members(file)):
                name = f"{path.name}/{key}"
                end = _end(files)
                image = next((member for kind, member in files.items() if f".{kind}" in EXTENSIONS), None)
                if image is None:
                    if {"cls", "json"} & files.keys():
                        yield BadSample(name, "the sample has a label but no image")
                    continue
                if image.size > MAX_BYTES:
                    reason = f"it has {image.size} bytes; the limit for an image is {MAX_BYTES}"
                    yield BadSample(name, reason, "huge")
                    continue
                label = _label(file, files)
                index = _index(label, lookup)
                if index is None:
                    known = f"{len(classes)} classes: {abbreviate(classes)}"
                    yield BadSample(
                        name, f"its label {label!r} is not one of the {known}" if label else "it has no label"
                    )
                    continue
                yield Entry(shard, name, image.offset, image.size, index)
    except (TarError, OSError) as error:
        count = _count_lost(path, end, usual())
        words = f"about {count} images are lost" if count > 1 else "at least 1 image is lost (exact number unknown)"
        yield BadSample(
            str(path), f"the rest of the shard cannot be read, {words}: {error}", "truncated", max(count, 1)
        )


def measure_shard(shards: Sequence[Path]) -> ShardSize:
    """Measure the largest shard and the size of its first samples."""
    for size, path in sorted(((_size(path), path) for path in shards), reverse=True):
        count, end = 0, 0
        with suppress(TarError, OSError), open_regular(path) as file:
            for _, files in islice(_groups(members(file)), MEASURED):
                count, end = count + 1, _end(files)
        if count:
            return ShardSize(size, end / count)
    return ShardSize(0, 0)


def _count_lost(path: Path, end: int, usual: ShardSize) -> int:
    """Estimate the samples lost after byte `end`, for a shard as long as the longest; 0 if unknown."""
    return round((max(usual.size, _size(path)) - end) / usual.sample) if usual.sample else 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _end(files: dict[str, Member]) -> int:
    return max(member.offset + member.size for member in files.values())


def _groups(found: Iterator[Member]) -> Iterator[tuple[str, dict[str, Member]]]:
    """Group consecutive members by path up to the first dot of the file name."""
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
        # The truncated sample lacks image or label; earlier ones are complete.
        if files and len(files) > 1:
            yield current, files
        raise
    if files:
        yield current, files


def _index(label: str, classes: dict[str, int]) -> int | None:
    """Return the class index of a label, a name or (if no class name is a number) an index; None if it is neither."""
    if label in classes or not label.isdecimal() or len(label) > LABEL_CHARS:
        return classes.get(label)
    if any(name.isdecimal() for name in classes):
        return classes.get(str(int(label)))
    return int(label) if int(label) < len(classes) else None


def _label(file: BinaryIO, files: dict[str, Member]) -> str:
    """Return a sample's label as text; empty if there is none."""
    for kind in ("cls", "json"):
        if kind in files:
            if files[kind].size > LABEL_BYTES:
                return ""
            file.seek(files[kind].offset)
            text = file.read(files[kind].size).decode(errors="replace").strip()
            if kind == "cls":
                return text[:LABEL_CHARS]
            try:
                content = json.loads(text)
            except (ValueError, RecursionError):
                return ""
            content = content if isinstance(content, dict) else {"label": content}
            label = next((content[key] for key in ("label", "cls", "class") if key in content), "")
            return str(label).strip()[:LABEL_CHARS] if isinstance(label, str | int | float) else ""
    return ""


def number_classes(shards: Sequence[Path]) -> tuple[list[int], tuple[str, ...]]:
    """Read every label as a number; return labels and class names."""
    labels: list[int] = []
    where = abbreviate([path.name for path in shards])
    for path in shards:
        try:
            with open_regular(path) as file:
                for _, files in _groups(members(file)):
                    text = _label(file, files)
                    if text and not text.isdecimal():
                        raise ValueError(
                            f"{path} has the label {text!r}, which is not a number; write the class names into a "
                            "file classes.txt beside the shards, one per line"
                        )
                    labels += [int(text)] if text else []
        except (TarError, OSError):
            continue  # reading reports what is lost
    if not labels:
        raise ValueError(f"no sample with a label was found in {where}")
    return labels, numbered_classes(max(labels), where=where)


def members(file: BinaryIO) -> Iterator[Member]:
    """Yield the regular files of an open tar by their headers; raise TarError if it is truncated."""
    end = os.fstat(file.fileno()).st_size
    position, long_name = 0, ""
    while True:
        file.seek(position)
        block = file.read(BLOCK)
        if block == bytes(BLOCK):  # the end mark
            return
        header = _header(block, position)
        offset, size = position + BLOCK, header.size
        if size < 0:
            raise TarError(f"it is damaged at byte {position}: {header.name!r} has {size} bytes")
        if offset + size > end:
            raise TarError(f"it is truncated: {header.name!r} needs {offset + size} bytes of {end}")
        position = offset + -(-size // BLOCK) * BLOCK
        if header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE):
            # Names over 100 bytes are in a separate member before the file.
            if size > NAME_BYTES:
                raise TarError(f"it is damaged at byte {position}: a name of {size} bytes; the limit is {NAME_BYTES}")
            long_name = _long_name(header.type, file.read(size)) or long_name
            continue
        if header.type in tarfile.REGULAR_TYPES:
            yield Member(long_name or header.name, offset, size)
        if header.type != tarfile.XGLTYPE:
            long_name = ""


def read_member(path: Path, *, offset: int, size: int) -> bytes:
    """Read one member's content."""
    with open_regular(path) as file:
        file.seek(offset)
        return file.read(size)


def _header(block: bytes, position: int) -> tarfile.TarInfo:
    if len(block) < BLOCK:
        raise TarError(f"it is truncated: it ends at byte {position + len(block)} without tar's end mark")
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        kind = "compressed? Shards are plain .tar files" if position == 0 else f"damaged at byte {position}"
        raise TarError(f"it is not a tar file, or {kind} ({error})") from error


def _long_name(kind: bytes, content: bytes) -> str:
    if kind == tarfile.GNUTYPE_LONGNAME:
        return content.rstrip(b"\0").decode(errors="surrogateescape")
    start = 0
    while start < len(content):  # records "LENGTH KEY=VALUE\n"
        length, _, _ = content[start : start + 10].partition(b" ")
        if not length.isdigit() or int(length) <= len(length):
            break
        key, _, value = content[start + len(length) + 1 : start + int(length) - 1].partition(b"=")
        if key == b"path":
            return value.decode(errors="surrogateescape")
        start += int(length)
    return ""
