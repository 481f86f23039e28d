"""YOLO annotations: one text file per image, one line per object, relative to the image size."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import yaml

from ...data.image import EXTENSIONS, BadSample, header
from ...data.split import TEST, TRAIN, VAL, abbreviate, choose_split
from .listed import Box, ListedObject, ObjectList, Size, read_text

LINE = (
    "a line must be class, x, y, width, height, or class and a polygon's corners, all but the class relative to the "
    "image size"
)
Line = tuple[int, Box, list[list[float]] | None]  # class, box, polygon


def is_yolo(path: Path) -> bool:
    """Whether a folder has YOLO's layout: images/ and labels/, above or below split folders."""
    return any(
        images.is_dir() and labels.is_dir() and next(labels.rglob("*.txt"), None) is not None
        for images, labels in [(path / "images", path / "labels"), *_swapped(path).values()]
    )


def _swapped(path: Path) -> dict[str, tuple[Path, Path]]:
    names = [name for name in (*TRAIN, *VAL, *TEST) if (path / name / "labels").is_dir()]
    return {name: (path / name / "images", path / name / "labels") for name in names}


def read_yolo(path: Path) -> tuple[dict[str, ObjectList], tuple[str, ...]]:
    """Read a folder's annotations by split; return them and remarks."""
    folders = _swapped(path)
    if not folders:
        inner = [one.name for one in sorted((path / "images").iterdir()) if one.is_dir()]
        folders = {name: (path / "images" / name, path / "labels" / name) for name in inner}
    roles, notes = choose_split(list(folders))
    parts = {part: folders[name] for part, name in roles.items()} or {"train": (path / "images", path / "labels")}
    names = _classes(path)
    found = {part: _read_part(path, images, labels) for part, (images, labels) in parts.items()}
    used = {int(label) for part in found.values() for label in part.classes}
    numbers = range(max(used, default=-1) + 1) if names is None else sorted(names)
    unnamed = [] if names is None else sorted(used - set(names))
    if unnamed:
        raise ValueError(
            f"{path}: some objects have the classes {abbreviate(list(map(str, unnamed)))}, which have no name; the "
            f"named classes are {abbreviate([f'{number} {name}' for number, name in names.items()] if names else [])}"
        )
    if len(numbers) > 1_000_000:
        raise ValueError(
            f"{path} has the class {max(used)}, but class numbers must start at 0. Number the classes without gaps"
        )
    words = {number: str(number) if names is None else names[number] for number in numbers}
    return {part: _named(listed, words) for part, listed in found.items()}, notes


def _named(listed: ObjectList, words: dict[int, str]) -> ObjectList:
    images = {
        name: [replace(thing, label=words[int(thing.label)]) for thing in some] for name, some in listed.images.items()
    }
    return replace(listed, images=images, classes=tuple(words.values()))


def _read_part(root: Path, images: Path, labels: Path) -> ObjectList:
    listed, used, read = ObjectList(), set[str](), set[Path]()
    for file in sorted(images.rglob("*")):
        if file.suffix.lower() not in EXTENSIONS or not file.is_file():
            continue
        name = file.relative_to(root).as_posix()
        listing = (labels / file.relative_to(images)).with_suffix(".txt")
        read.add(listing)
        lines = read_text(listing).splitlines() if listing.is_file() else []
        if not any(line.strip() for line in lines):
            listed.images[name] = []
            continue
        try:
            about = header(file, name=name)
        except BadSample as bad:
            listed.lost.append(bad)
            continue
        size = (about.height, about.width)
        listed.images[name], listed.sizes[name] = (
            [],
            size[::-1] if about.orientation >= 5 else size,
        )  # after EXIF rotation
        for number, box, polygon in _lines(listing, lines, listed.sizes[name]):
            used.add(str(number))
            listed.add(name, ListedObject(str(number), box, region=polygon))
    for listing in sorted(labels.rglob("*.txt")):
        if listing not in read and listing.name != "classes.txt":
            listed.lost.append(BadSample(listing.relative_to(root).as_posix(), "no image has this name", "missing"))
    listed.classes = tuple(used)
    return listed


def _lines(file: Path, lines: list[str], size: Size) -> Iterator[Line]:
    high, wide = size
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        try:
            label, values = float(words[0]), list(map(float, words[1:]))
            shaped = len(values) == 4 or (len(values) >= 6 and len(values) % 2 == 0)
            if label < 0 or label != int(label) or not shaped:
                raise ValueError
        except (ValueError, OverflowError):
            raise ValueError(f"{file}, line {number}: {line[:80]!r}; {LINE}") from None
        if len(values) == 4:
            x, y, width, height = values
            left, top, right, bottom = x - width / 2, y - height / 2, x + width / 2, y + height / 2
            polygon = None
        else:
            left, right, top, bottom = min(values[::2]), max(values[::2]), min(values[1::2]), max(values[1::2])
            polygon = [[value * (high if place % 2 else wide) for place, value in enumerate(values)]]
        yield int(label), (left * wide, top * high, right * wide, bottom * high), polygon


def _classes(path: Path) -> dict[int, str] | None:
    """Return the class names of data.yaml or classes.txt; None if there is neither."""
    names = None
    for file in (path / "data.yaml", path / "data.yml", path / "dataset.yaml"):
        if names is None and file.is_file():
            names = _yaml_names(file)
    for file in (path / "classes.txt", path / "labels" / "classes.txt", path / "obj.names"):
        if names is None and file.is_file():
            names = dict(enumerate(line.strip() for line in read_text(file).splitlines() if line.strip()))
    if names is not None and len(set(names.values())) < len(names):
        raise ValueError(f"{path} has two classes with the same name: {abbreviate(list(names.values()))}; rename one")
    return names


def _yaml_names(file: Path) -> dict[int, str] | None:
    try:
        whole = yaml.load(read_text(file), yaml.BaseLoader)  # all values as text: a class may be named "no"
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is not YAML: {str(error)[:200]}") from None
    names = whole.get("names") if isinstance(whole, dict) else None
    if names is None or names == "":
        return None
    pairs = list(names.items() if isinstance(names, dict) else enumerate(names) if isinstance(names, list) else [])
    if not pairs or not all(str(number).isdecimal() and isinstance(name, str) for number, name in pairs):
        raise ValueError(f"{file}: names must be a list of class names, or a mapping from class numbers to names")
    return dict(sorted((int(number), name) for number, name in pairs))
