"""Annotations of any layout."""

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
LARGEST = 16 << 20  # largest text file in bytes


@dataclass(frozen=True)
class ListedObject:
    """An annotated object: class, box, whether it is a crowd, its mask in COCO's format, and its listed area."""

    label: str
    box: Box
    crowd: bool = False
    region: Any = None
    area: float = 0.0  # in pixels; 0 if it is not listed


@dataclass
class ObjectList:
    """The images of a split, their objects, and problems."""

    # objects by image name, relative to the dataset's folder
    images: dict[str, list[ListedObject]] = field(default_factory=dict)
    sizes: dict[str, Size] = field(default_factory=dict)  # heights and widths of images, where annotated
    # problems of omitted objects and unusable masks, by image name
    remarks: dict[str, list[str]] = field(default_factory=dict)
    # missing images, and objects without image or class
    lost: list[BadSample] = field(default_factory=list)
    objects: int = 0  # number of objects, including lost ones
    classes: tuple[str, ...] = ()  # class names

    def add(self, name: str, thing: ListedObject) -> None:
        """Add an object, or a remark if its box is outside of the image."""
        self.objects += 1
        left, top, right, bottom = thing.box
        shown = [round(value, 2) if math.isfinite(value) else value for value in thing.box]
        if not all(map(math.isfinite, thing.box)) or right <= left or bottom <= top:
            self.remark(name, f"a {thing.label} has a box without area and was dropped: {shown}")
        elif not _is_inside(thing.box, self.sizes.get(name)):
            self.remark(name, f"a {thing.label} has a box outside the image and was dropped: {shown}")
        else:
            self.images[name].append(thing)

    def remark(self, name: str, text: str) -> None:
        """Record a problem of an image's object."""
        self.remarks.setdefault(name, []).append(text)

    def all_remarks(self) -> Iterator[str]:
        """Yield every remark with its image's name."""
        return (f"{name}: {text}" for name, texts in self.remarks.items() for text in texts)


def _is_inside(box: Box, size: Size | None) -> bool:
    left, top, right, bottom = box
    return size is None or (right > 0 and bottom > 0 and left < size[1] and top < size[0])


def find_image(root: Path, places: Sequence[Path], name: str) -> str | None:
    """Return an image's path relative to a folder; None if it is not found.

    Names that lead out of the folder are refused; links inside it are followed.
    """
    if "\\" in name and "/" not in name:
        name = name.replace("\\", "/")  # annotations written on Windows
    for place in places:
        relative = os.path.relpath(os.path.normpath(place / name), root)
        try:
            if relative.split(os.sep)[0] != ".." and (root / relative).is_file():
                return Path(relative).as_posix()
        except (OSError, ValueError):  # names that are too long, or with a zero byte
            continue
    return None


def missing(name: str, *, objects: int = 0) -> BadSample:
    """Return the fault of a missing image."""
    reason = "it is listed in the annotations, but the file does not exist"
    if name.startswith(("/", "..")) or "/../" in name:
        reason = "it is listed in the annotations, but lies outside the dataset's folder"
    told = name.encode(errors="backslashreplace").decode()
    return BadSample(told, reason + (f"; its objects are lost: {objects}" if objects else ""), "missing")


def read_text(file: Path) -> str:
    """Read a small text file."""
    try:
        return read_small(file, most=LARGEST).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not encoded in UTF-8: {error}") from None
