"""Read plain tar files member by member, in constant memory, and tell where one is cut short."""

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..files import open_regular

BLOCK = 512
NAME_BYTES = 65536  # of a member that holds the name of the next; no file system has longer ones


class Member(NamedTuple):
    """A file inside a tar: its name, and where its content lies."""

    name: str
    offset: int
    size: int


class TarError(ValueError):
    """A tar file that is cut short or damaged."""


def members(file: BinaryIO) -> Iterator[Member]:
    """Yield the regular files of an open tar in order, reading headers only; raise TarError where it is cut short."""
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
            # Names over 100 bytes stand in a member of their own before the file's.
            if size > NAME_BYTES:
                raise TarError(f"it is damaged at byte {position}: a name of {size} bytes, where {NAME_BYTES} are many")
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
