"""Files that are on the disk whole or not at all, and an error that says what to do where they cannot be."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError


class WriteError(OSError):
    """A file that could not be written."""


@contextmanager
def whole_file(path: Path, *, then: str = "do the same again") -> Iterator[Path]:
    """Yield a name beside a file's place; what is written there comes to the disk and takes the place, or is removed.

    Args:
        path: of the file.
        then: what to do after making room.
    """
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
        told = getattr(error, "strerror", None) or str(error)
        raise WriteError(
            f"{path} could not be written: {told}. Make room on that disk, or see that the folder may be written to; "
            f"then {then}"
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    with whole_file(path) as draft, open(draft, "w", encoding="utf-8", newline="") as file:
        file.write(text)
