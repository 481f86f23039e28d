"""What a list says is in images, whatever its layout."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...data.image import BadSample
from ...support.files import read_small

Box = tuple[float, float, float, float]  # left, top, right, bottom
Size = tuple[int, int]  # height, width
LARGEST = 16 << 20  # bytes of a text that is read


@dataclass(frozen=True)
class Thing:
    """An object as a list tells it: its class, its box, whether it is a crowd, and its region as COCO writes it."""

    label: str
    box: Box
    crowd: bool = False
    region: Any = None


@dataclass
class Listed:
    """The images of a part, what is in each, and what was wrong."""

    # objects by the image's name, relative to the set's folder
    images: dict[str, list[Thing]] = field(default_factory=dict)
    sizes: dict[str, Size] = field(default_factory=dict)  # heights and widths, of images of which the list tells them
    # on objects that were left out or have no usable region, by the image's name
    remarks: dict[str, list[str]] = field(default_factory=dict)
    # images that are not there, and objects that belong to no image or class
    lost: list[BadSample] = field(default_factory=list)
    objects: int = 0  # that the list has, the lost ones included
    classes: tuple[str, ...] = ()  # names of all classes

    def add(self, name: str, thing: Thing) -> None:
        """Take an object, or remark on one whose box shows nothing of the image."""
        self.objects += 1
        left, top, right, bottom = thing.box
        shown = [round(value, 2) if math.isfinite(value) else value for value in thing.box]
        if not all(map(math.isfinite, thing.box)) or right <= left or bottom <= top:
            self.remark(name, f"a {thing.label} has a box without area, left out: {shown}")
        elif not _is_inside(thing.box, self.sizes.get(name)):
            self.remark(name, f"a {thing.label} has a box outside of the image, left out: {shown}")
        else:
            self.images[name].append(thing)

    def remark(self, name: str, text: str) -> None:
        """Note what is wrong with an object of an image."""
        self.remarks.setdefault(name, []).append(text)

    def all_remarks(self) -> Iterator[str]:
        """Yield every remark with its image's name."""
        return (f"{name}: {text}" for name, texts in self.remarks.items() for text in texts)


def _is_inside(box: Box, size: Size | None) -> bool:
    left, top, right, bottom = box
    return size is None or (right > 0 and bottom > 0 and left < size[1] and top < size[0])


def find_image(root: Path, places: Sequence[Path], name: str) -> str | None:
    """Return where an image lies, relative to a folder; None if it is in none of the places.

    Names that lead out of the folder are not followed; links that lie in it are, as in any set of files.
    """
    if "\\" in name and "/" not in name:
        name = name.replace("\\", "/")  # lists written on Windows
    for place in places:
        relative = os.path.relpath(os.path.normpath(place / name), root)
        try:
            if relative.split(os.sep)[0] != ".." and (root / relative).is_file():
                return Path(relative).as_posix()
        except (OSError, ValueError):  # names too long, or with a zero byte
            continue
    return None


def missing(name: str, *, objects: int = 0) -> BadSample:
    """Return what is said of an image that is not there."""
    reason = "the list names it, and it is not there"
    if name.startswith(("/", "..")) or "/../" in name:
        reason = "the list names it and it lies outside of the set's folder"
    told = name.encode(errors="backslashreplace").decode()
    return BadSample(told, reason + (f"; its objects are lost: {objects}" if objects else ""), "missing")


def read_text(file: Path) -> str:
    """Return the text of a file that tells of one image, or of a part's images."""
    try:
        return read_small(file, most=LARGEST).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not written in UTF-8: {error}") from None
