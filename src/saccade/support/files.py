"""Files and folders that are on the disk whole or not at all, errors where they cannot be, free names, safe opening."""

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

RECORD = 2**30  # bytes of a JSON file
PART = 2**24  # bytes that are read at a time


class WriteError(OSError):
    """A file that could not be written."""


class NotRegularError(OSError):
    """A pipe, a device or a folder in the place of a file.

    Attributes:
        what: it is, in words.
    """

    what = "no regular file"


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read it; a pipe would let its reader wait for ever, and a device may have no end."""
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
    """Put what a safetensors file says of itself in order, so that the same content is the same bytes.

    The library writes it in an order of chance. Nothing is moved: the header keeps its length.
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
    """Return what a regular file of so many bytes at most holds, or say that it is too large for what it is."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"{path} has {size} bytes, and at most {most} are read of such a file; see what it is")
        return file.read(most)


def fingerprint(*files: Path) -> str:
    """Return what tells the content of files from others."""
    found = hashlib.sha256()
    for path in files:
        with open_regular(path) as file:
            while part := file.read(PART):
                found.update(part)
    return found.hexdigest()


def physical_memory() -> int:
    """Return the bytes of memory of this machine; what is not known is much."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**50


def read_record(path: Path, *, most: int = RECORD) -> dict[str, Any]:
    """Return the object that a JSON file holds; an empty one where it is not there, damaged, or something else."""
    try:
        found = json.loads(read_small(path, most=most))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def whole_file(path: Path, *, then: str = "do the same again") -> Iterator[Path]:
    """Yield a name beside a file's place; what is written there takes it, or is removed; a full disk says `then`."""
    draft = path.with_name(f".{path.name}.part")
    try:
        with explained(path, then=then):
            draft.touch()
            mode = draft.stat().st_mode  # as the user's files are; some writers make theirs private
            yield draft
            draft.chmod(mode)
            with open(draft, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(draft, path)
    finally:
        with suppress(OSError):
            draft.unlink()


@contextmanager
def explained(path: Path, *, then: str = "do the same again") -> Iterator[None]:
    """Say of a failed writing which file it was and what to do; arguments as for `whole_file`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        detail = getattr(error, "strerror", None) or str(error)
        raise WriteError(
            f"{path} could not be written: {detail}. Make room on that disk, or see that the folder may be written to; "
            f"then {then}"
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    with whole_file(path) as draft, open(draft, "w", encoding="utf-8", newline="") as file:
        file.write(text)


def append_line(path: Path, text: str, *, then: str = "do the same again") -> None:
    """Add a line to a file, on the disk before this returns; arguments as for `whole_file`."""
    with explained(path, then=then), open(path, "a", encoding="utf-8") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside a folder's place; when all is written it takes the place of what was there."""
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
    """Return `folder/name`, with a number if that is taken."""
    path, number = folder / name, 2
    while path.exists():
        path, number = folder / f"{name}-{number}", number + 1
    return path


@dataclass(frozen=True)
class OwnFolder:
    """A folder that holds nothing, or one thing of a kind that may be replaced."""

    kind: str  # what is written there, in a word
    is_own: Callable[[Path], bool]  # tells whether a folder holds nothing but that

    def require(self, folder: str | Path, *, overwrite: bool) -> Path:
        """Return a folder that may be written, or say why not; `overwrite` lets what was written before go."""
        path = Path(folder).expanduser()
        if path.exists() and not path.is_dir():
            raise FileExistsError(f"{path} is a file; name a folder for the {self.kind}")
        if path.is_dir() and any(path.iterdir()):
            if not self.is_own(path):
                raise FileExistsError(f"{path} holds something that is no {self.kind}; name another folder")
            if not overwrite:
                raise FileExistsError(
                    f"{path} holds an {self.kind}; replace it with --overwrite, or name another directory with --out"
                )
        return path

    def choose(self, folder: str | Path, *, overwrite: bool) -> Path:
        """Return the folder, or one with a number if it holds something of the kind that is not to be replaced."""
        return free_folder(self.require(folder, overwrite=True), overwrite=overwrite)


def free_folder(path: Path, *, overwrite: bool) -> Path:
    """Return a folder, or one beside it with a number if it holds something that is not to be replaced."""
    if overwrite or not path.is_dir() or not any(path.iterdir()):
        return path
    path = path.resolve() if path.name in ("", "..") else path
    return free_name(path.parent, path.name)


def cache_folder(*parts: str) -> Path:
    """Return a folder for what is made once and run later, in the user's cache, made if it is missing."""
    if not hasattr(os, "getuid"):
        raise OSError("compiled code is kept on Linux and macOS only")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saccade"
    for name in ("", *parts):
        folder = folder / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_owner(folder)
    return folder


def check_owner(path: Path) -> None:
    """Refuse what somebody else could have put there or could change: it is about to be run."""
    found = path.lstat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or stat.S_ISLNK(found.st_mode):
        raise OSError(
            f"{path} belongs to user {found.st_uid} with mode {stat.filemode(found.st_mode)}; it must be your own and "
            "writable by you alone; remove it, or point XDG_CACHE_HOME to another folder"
        )
