"""Pascal VOC annotations: one XML file per image."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ...data.image import EXTENSIONS
from ...data.split import abbreviate, choose_split
from ...support.wording import count_are
from .listed import ListedObject, ObjectList, Size, find_image, missing, read_text

SIDES = ("xmin", "ymin", "xmax", "ymax")


def is_voc(path: Path) -> bool:
    """Whether a folder has VOC's layout."""
    return (path / "Annotations").is_dir() and next((path / "Annotations").glob("*.xml"), None) is not None


def read_voc(path: Path) -> tuple[dict[str, ObjectList], tuple[str, ...]]:
    """Read a folder's annotations by split; return them and remarks."""
    files = {file.stem: file for file in sorted((path / "ImageSets" / "Main").glob("*.txt"))}
    roles, notes = choose_split(list(files))
    if roles:
        stems = {
            part: list(dict.fromkeys(line.split()[0] for line in read_text(files[name]).splitlines() if line.split()))
            for part, name in roles.items()
        }
    else:
        stems = {"train": sorted(file.stem for file in (path / "Annotations").glob("*.xml"))}
        notes = (*notes, *_unannotated(path, stems["train"]))
    found = {part: _read_part(path, some) for part, some in stems.items()}
    classes = tuple(sorted({label for one in found.values() for label in one.classes}))
    return {part: replace(listed, classes=classes) for part, listed in found.items()}, notes


def _read_part(root: Path, stems: list[str]) -> ObjectList:
    listed, labels = ObjectList(), set()
    places = [root / name for name in ("JPEGImages", "images", ".") if (root / name).is_dir()]
    for stem in stems:
        name = next((one for end in EXTENSIONS if (one := find_image(root, places, f"{stem}{end}"))), None)
        file = find_image(root, [root / "Annotations"], f"{stem}.xml")
        if name is None:
            listed.lost.append(missing(stem))
            continue
        if file is None:
            raise FileNotFoundError(
                f"{root / 'Annotations' / stem}.xml does not exist, but its image is listed; add the file, or remove "
                "the image from the list"
            )
        parsed = _parse(root / file)
        listed.images[name] = []
        if (size := _size(parsed)) is not None:
            listed.sizes[name] = size
        for thing in _things(parsed, root / file):
            labels.add(thing.label)
            listed.add(name, thing)
    listed.classes = tuple(sorted(labels))
    return listed


def _unannotated(root: Path, stems: list[str]) -> Iterator[str]:
    """Yield a remark on images without annotations."""
    images = (file for file in sorted((root / "JPEGImages").glob("*")) if file.suffix.lower() in EXTENSIONS)
    listed = set(stems)
    if unlisted := [file.name for file in images if file.stem not in listed]:
        yield f"{count_are(len(unlisted), 'image')} not used (no file in Annotations): {abbreviate(unlisted)}"


def _parse(file: Path) -> ElementTree.Element:
    text = read_text(file)
    if "<!ENTITY" in text or "<!DOCTYPE" in text:
        raise ValueError(f"{file} defines XML entities, which annotations do not need; remove them")
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"{file} is not XML: {error}") from None


def _size(parsed: ElementTree.Element) -> Size | None:
    """Return an annotation's height and width; some tools write zeros."""
    try:
        height, width = (int(parsed.findtext(f"size/{side}") or 0) for side in ("height", "width"))
    except ValueError:
        return None
    return (height, width) if height > 0 and width > 0 else None


def _things(parsed: ElementTree.Element, file: Path) -> Iterator[ListedObject]:
    for one in parsed.iter("object"):
        label, box = (one.findtext("name") or "").strip(), one.find("bndbox")
        try:
            if not label or box is None:
                raise ValueError
            left, top, right, bottom = (float(box.findtext(side) or "") for side in SIDES)
        except ValueError:
            raise ValueError(f"{file}: an object has no name, or its box lacks a side ({', '.join(SIDES)})") from None
        difficult = (one.findtext("difficult") or "0").strip() == "1"
        yield ListedObject(label, (left - 1, top - 1, right, bottom), difficult)  # 1-based and inclusive
