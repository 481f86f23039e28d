"""Atomic writing of files and folders, readable errors, free names, safe opening."""

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

RECORD = 2**30  # largest JSON file
PART = 2**24  # bytes read at a time


class WriteError(OSError):
    """A file could not be written."""


class NotRegularError(OSError):
    """A path is a pipe, device or folder instead of a file.

    Attributes:
        what: description of what it is.
    """

    what = "not a regular file"


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file; refuse pipes, which may block, and devices, which may be endless."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    kind = os.fstat(handle).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(handle, "rb")
    os.close(handle)
    name = "a folder" if stat.S_ISDIR(kind) else "a pipe" if stat.S_ISFIFO(kind) else "a device or a socket"
    error = NotRegularError(f"{path} is {name}; only regular files are read")
    error.what = name
    raise error


def sort_header(path: Path) -> None:
    """Sort the header of a safetensors file, so that equal content has equal bytes.

    The library's order is random. The header's length does not change.
    """
    with open(path, "rb+") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        if len(header.get("__metadata__", ())) < 2:
            return
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= length:
            file.seek(8)
            file.write(text.ljust(length))


def read_small(path: Path, *, most: int) -> bytes:
    """Read a regular file of at most `most` bytes, or raise an error."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(
                f"{path} has {size} bytes, but at most {most} are read from such a file; check whether it is the "
                "right file"
            )
        return file.read(most)


def fingerprint(*files: Path) -> str:
    """Return a fingerprint of the content of files."""
    found = hashlib.sha256()
    for path in files:
        with open_regular(path) as file:
            while part := file.read(PART):
                found.update(part)
    return found.hexdigest()


def physical_memory() -> int:
    """Return this machine's memory in bytes; a large number if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**50


def read_record(path: Path, *, most: int = RECORD) -> dict[str, Any]:
    """Read a JSON object; empty if the file is missing, damaged, or not an object."""
    try:
        found = json.loads(read_small(path, most=most))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def whole_file(path: Path, *, then: str = "try again") -> Iterator[Path]:
    """Yield a temporary path that is renamed to the target, or removed on errors; `then` is advice for a full disk."""
    draft = path.with_name(f".{path.name}.part")
    try:
        with explained(path, then=then):
            draft.touch()
            mode = draft.stat().st_mode  # default permissions, since some writers make files private
            yield draft
            draft.chmod(mode)
            with open(draft, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(draft, path)
    finally:
        with suppress(OSError):
            draft.unlink()


@contextmanager
def explained(path: Path, *, then: str = "try again") -> Iterator[None]:
    """Add file name and advice to errors of writing; arguments as for `whole_file`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        detail = getattr(error, "strerror", None) or str(error)
        raise WriteError(
            f"{path} could not be written: {detail}. Make room on the disk, or make the folder writable; then {then}"
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    with whole_file(path) as draft, open(draft, "w", encoding="utf-8", newline="") as file:
        file.write(text)


def append_line(path: Path, text: str, *, then: str = "try again") -> None:
    """Append a line to a file and flush it to disk; arguments as for `whole_file`."""
    with explained(path, then=then), open(path, "a", encoding="utf-8") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces the target at the end."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        if path.exists():
            shutil.rmtree(path)
        os.replace(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def free_name(folder: Path, name: str) -> Path:
    """Return `folder/name`, with a number if it exists."""
    path, number = folder / name, 2
    while path.exists():
        path, number = folder / f"{name}-{number}", number + 1
    return path


@dataclass(frozen=True)
class OwnFolder:
    """An output folder that is empty, or has an earlier output of the same kind."""

    kind: str  # the word for the output
    is_own: Callable[[Path], bool]  # whether a folder only has such an output

    def require(self, folder: str | Path, *, overwrite: bool) -> Path:
        """Return the folder if it can be written, or raise; `overwrite` permits replacing an earlier output."""
        path = Path(folder).expanduser()
        if path.exists() and not path.is_dir():
            raise FileExistsError(f"{path} is a file; name a folder for the {self.kind}")
        if path.is_dir() and any(path.iterdir()):
            if not self.is_own(path):
                raise FileExistsError(f"{path} is not empty and is not an {self.kind} folder; name another folder")
            if not overwrite:
                raise FileExistsError(
                    f"{path} holds an {self.kind}; replace it with --overwrite, or name another directory with --out"
                )
        return path

    def choose(self, folder: str | Path, *, overwrite: bool) -> Path:
        """Return the folder, or a numbered one if it has an output that is not to be replaced."""
        return free_folder(self.require(folder, overwrite=True), overwrite=overwrite)


def free_folder(path: Path, *, overwrite: bool) -> Path:
    """Return a folder, or a numbered one if it is not empty and not to be replaced."""
    if overwrite or not path.is_dir() or not any(path.iterdir()):
        return path
    path = path.resolve() if path.name in ("", "..") else path
    return free_name(path.parent, path.name)


def cache_folder(*parts: str) -> Path:
    """Return saccade's folder in the user's cache, created if missing."""
    if not hasattr(os, "getuid"):
        raise OSError("compiled code is only cached on Linux and macOS")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saccade"
    for name in ("", *parts):
        folder = folder / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_owner(folder)
    return folder


def check_owner(path: Path) -> None:
    """Refuse a path that other users own or can write, since its content will be executed."""
    found = path.lstat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or stat.S_ISLNK(found.st_mode):
        raise OSError(
            f"{path} belongs to user {found.st_uid} with mode {stat.filemode(found.st_mode)}; it must belong to you "
            "and be writable only by you; remove it, or set XDG_CACHE_HOME to another folder"
        )
