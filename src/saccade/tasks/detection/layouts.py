"""Folders of images with objects, by the layouts people have: COCO's JSON, VOC's XML, YOLO's text."""

import json
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ...data.image import EXTENSIONS, BadSample, header
from ...data.reader import ReadOptions, register_reader
from ...data.source import FileSource, Names, Splits
from ...data.split import TRAIN, VAL, abbreviate, choose_split
from .data import BoxTargets

LARGEST = 2 << 30  # bytes of a list that is read
PARTS = {"train": TRAIN, "val": (*VAL, "test")}
KNOWN = tuple(name for names in PARTS.values() for name in names)


@dataclass(frozen=True)
class Thing:
    """An object as a list tells it: its class, its box, whether it is a crowd, and its region as COCO writes it."""

    label: str
    box: tuple[float, float, float, float]  # left, top, right, bottom
    crowd: bool = False
    region: Any = None


@dataclass
class Listed:
    """The images of a part, with what is in each and what was wrong there."""

    images: dict[str, list[Thing]] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)
    missing: list[BadSample] = field(default_factory=list)
    classes: tuple[str, ...] = ()

    def add(self, name: str, thing: Thing) -> None:
        """Take an object, or remark on one that has no area."""
        left, top, right, bottom = thing.box
        if not all(map(math.isfinite, thing.box)) or right <= left or bottom <= top:
            shown = [round(value, 2) if math.isfinite(value) else value for value in thing.box]
            self.remarks.setdefault(name, []).append(f"a {thing.label} has a box without area, left out: {shown}")
        else:
            self.images[name].append(thing)


@register_reader("objects")
class ObjectFolderReader:
    """A folder of images and lists of what is in them."""

    rank, task = 45, "detect"

    def matches(self, spec: str, path: Path) -> bool:  # noqa: ARG002
        """Whether a layout knows it."""
        return path.is_dir() and any(matches(path) for _, matches, _ in LAYOUTS)

    def open(self, spec: str, path: Path, options: ReadOptions) -> Splits:  # noqa: ARG002
        """Open it; no image is decoded."""
        return open_objects(path, bad_limit=options.bad_limit)


def open_objects(path: Path, *, bad_limit: float = 0.05) -> Splits:
    """List a folder of images and objects.

    Args:
        path: the folder.
        bad_limit: share of a part's images that may be missing; they are named.
    """
    name, read = next((name, read) for name, matches, read in LAYOUTS if matches(path))
    parts = read(path)
    if not parts.get("train") or not parts["train"].images:
        raise ValueError(f"{path} is laid out as {name} and lists no training images; see docs/detection.md")
    classes = tuple(dict.fromkeys(label for part in parts.values() for label in part.classes))
    sources: dict[str, FileSource] = {}
    notes: list[str] = [f"images and objects as {name} lays them out"]
    for part, listed in parts.items():
        if len(listed.missing) > max(bad_limit * (len(listed.images) + len(listed.missing)), 1):
            raise FileNotFoundError(
                f"{path}: {len(listed.missing)} of {len(listed.images) + len(listed.missing)} images that the part "
                f"{part} lists are not there: {abbreviate([bad.name for bad in listed.missing])}"
            )
        targets = make_targets(listed, classes)
        source = FileSource(path, list(listed.images), targets)
        source.lost = tuple(listed.missing)
        sources[part] = source
        notes += _notes(part, listed, targets)
    return Splits(sources["train"], sources.get("val"), tuple(notes))


def make_targets(listed: Listed, classes: Sequence[str]) -> BoxTargets:
    """Return what a part lists as targets."""
    number = {name: place for place, name in enumerate(classes)}
    things = [thing for one in listed.images.values() for thing in one]
    starts = np.cumsum([0, *(len(one) for one in listed.images.values())], dtype=np.int64)
    regions = [thing.region for thing in things] if any(thing.region is not None for thing in things) else None
    names = list(listed.images)
    return BoxTargets(
        np.arange(len(names), dtype=np.int64),
        tuple(classes),
        starts=starts,
        boxes=np.array([thing.box for thing in things], dtype=np.float32).reshape(-1, 4),
        labels=np.array([number[thing.label] for thing in things], dtype=np.int64),
        crowd=np.array([thing.crowd for thing in things], dtype=bool),
        regions=regions,
        names=Names(names),
        remarks={place: tuple(listed.remarks[name]) for place, name in enumerate(names) if name in listed.remarks},
    )


def _notes(part: str, listed: Listed, targets: BoxTargets) -> Iterator[str]:
    lost = sum(map(len, listed.remarks.values()))
    if lost:
        said = [one for some in listed.remarks.values() for one in some]
        yield f"{part}: {lost} objects were left out: {abbreviate(said)}"
    if empty := targets.empty():
        yield f"{part}: {empty} images have no objects; they teach what is none"
    absent = [name for name, count in zip(targets.outputs, targets.counts(), strict=True) if not count]
    if absent:
        yield f"{part}: no object is of {abbreviate(absent)}"
    if targets.crowd.any():
        yield f"{part}: {int(targets.crowd.sum())} regions are crowds, in which nothing is counted right or wrong"
    if targets.regions is not None and (without := sum(region is None for region in targets.regions)):
        yield f"{part}: {without} objects have no mask; their boxes are used"


# COCO


def _coco_lists(path: Path) -> dict[str, Path]:
    """Return a folder's lists by part: train.json, instances_train.json, annotations/instances_train2017.json, ..."""
    named: dict[str, Path] = {}
    for folder in (path, path / "annotations"):
        for file in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            stem = file.stem.lower().removeprefix("instances_").removeprefix("_annotations.coco")
            if (name := stem.rstrip("0123456789")) in KNOWN:
                named.setdefault(name, file)
    for name in KNOWN:  # a list in each part's own folder
        if (file := path / name / "_annotations.coco.json").is_file():
            named.setdefault(name, file)
    return {part: named[name] for part, names in PARTS.items() for name in reversed(names) if name in named}


def _is_coco(path: Path) -> bool:
    lists = _coco_lists(path)
    return "train" in lists and _first_key(lists["train"])


def _first_key(file: Path) -> bool:
    """Tell whether a file seems to be COCO's, by its first part."""
    with file.open("rb") as opened:
        begin = opened.read(1 << 16)
    return begin.lstrip()[:1] == b"{" and any(
        key in begin for key in (b'"images"', b'"annotations"', b'"categories"', b'"info"')
    )


def _read_coco(path: Path) -> dict[str, Listed]:
    return {part: _read_coco_list(path, file, part) for part, file in _coco_lists(path).items()}


def _read_coco_list(root: Path, file: Path, part: str) -> Listed:
    whole = _json(file)
    for key in ("images", "annotations", "categories"):
        if not isinstance(whole.get(key), list):
            raise ValueError(f"{file} has no list called {key!r}; COCO's format has images, annotations and categories")
    try:
        categories = {one["id"]: str(one["name"]) for one in whole["categories"]}
        known = {one["id"]: str(one["file_name"]) for one in whole["images"]}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file}: an entry of images or categories lacks {error}; each has an id and a name") from None
    if len(set(categories.values())) < len(categories):
        raise ValueError(f"{file} has two categories of one name: {abbreviate(list(categories.values()))}; rename one")
    listed = Listed(classes=tuple(categories[one] for one in sorted(categories, key=_order)))
    places = [file.parent, root, *(root / name for name in ("images", *PARTS[part]))]
    places += [root / "images" / name for name in PARTS[part]]
    places += [folder for name in PARTS[part] for folder in sorted(root.glob(f"{name}[0-9]*")) if folder.is_dir()]
    names: dict[Any, str | None] = {}
    for key, file_name in known.items():
        found = find_image(root, places, file_name)
        names[key] = found
        if found is None:
            listed.missing.append(BadSample(file_name, "the list names it and it is not there", "missing"))
        else:
            listed.images[found] = []
    unknown: list[str] = []
    for one in whole["annotations"]:
        image, category = one.get("image_id"), one.get("category_id")
        if image not in names or category not in categories:
            what = f"image {image}" if image not in names else f"category {category}"
            unknown.append(what)
        elif (name := names[image]) is not None:
            listed.add(name, _coco_thing(one, categories[category], file))
    if unknown:
        raise ValueError(
            f"{file}: {len(unknown)} annotations speak of what the list lacks: {abbreviate(sorted(set(unknown)))}; add "
            "it to images or categories, or take them out"
        )
    return listed


def _coco_thing(one: Mapping[str, Any], label: str, file: Path) -> Thing:
    box = one.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(value, int | float) for value in box):
        raise ValueError(f"{file}: annotation {one.get('id')} has the bbox {box!r}; it is left, top, width, height")
    left, top, width, height = map(float, box)
    return Thing(
        label, (left, top, left + width, top + height), bool(one.get("iscrowd")), one.get("segmentation") or None
    )


def _order(key: Any) -> tuple[int, Any]:
    return (0, key) if isinstance(key, int | float) else (1, str(key))


# VOC


def _is_voc(path: Path) -> bool:
    return (path / "Annotations").is_dir() and next((path / "Annotations").glob("*.xml"), None) is not None


def _read_voc(path: Path) -> dict[str, Listed]:
    images = path / "JPEGImages" if (path / "JPEGImages").is_dir() else path / "images"
    lists = {file.stem: file for file in sorted((path / "ImageSets" / "Main").glob("*.txt"))}
    roles, _ = choose_split(list(lists))
    if roles:
        stems = {
            part: [line.split()[0] for line in lists[name].read_text().splitlines() if line.split()]
            for part, name in roles.items()
        }
    else:
        stems = {"train": sorted(file.stem for file in (path / "Annotations").glob("*.xml"))}
    found: dict[str, Listed] = {}
    for part, some in stems.items():
        listed, labels = Listed(), set()
        for stem in some:
            name = next((one for end in EXTENSIONS if (one := find_image(path, [images], f"{stem}{end}"))), None)
            if name is None:
                listed.missing.append(BadSample(stem, "the list names it and there is no such image", "missing"))
                continue
            listed.images[name] = []
            for thing in _voc_things(path / "Annotations" / f"{stem}.xml"):
                labels.add(thing.label)
                listed.add(name, thing)
        listed.classes = tuple(sorted(labels))
        found[part] = listed
    classes = tuple(sorted({label for one in found.values() for label in one.classes}))
    return {part: replace(listed, classes=classes) for part, listed in found.items()}


def _voc_things(file: Path) -> Iterator[Thing]:
    try:
        text = file.read_text(encoding="utf-8")
        if "<!ENTITY" in text or "<!DOCTYPE" in text:
            raise ValueError(f"{file} defines entities, which no list of objects needs; take them out")
        root = ElementTree.fromstring(text)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{file} is not there, and its image is listed; add it, or take the image out"
        ) from None
    except (ElementTree.ParseError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is no XML: {error}") from None
    for one in root.iter("object"):
        label, box = one.findtext("name"), one.find("bndbox")
        try:
            if not label or box is None:
                raise ValueError
            left, top, right, bottom = (float(box.findtext(side) or "") for side in ("xmin", "ymin", "xmax", "ymax"))
        except ValueError:
            raise ValueError(
                f"{file}: an object lacks its name or a side of its box (xmin, ymin, xmax, ymax)"
            ) from None
        yield Thing(
            label.strip(), (left - 1, top - 1, right, bottom), (one.findtext("difficult") or "0").strip() == "1"
        )


# YOLO


def _is_yolo(path: Path) -> bool:
    return (
        (path / "labels").is_dir()
        and (path / "images").is_dir()
        and next((path / "labels").rglob("*.txt"), None) is not None
    )


def _read_yolo(path: Path) -> dict[str, Listed]:
    names = _yolo_classes(path)
    folders = [one.name for one in sorted((path / "images").iterdir()) if one.is_dir()]
    roles, _ = choose_split(folders)
    parts = {part: path / "images" / name for part, name in roles.items()} or {"train": path / "images"}
    found: dict[str, Listed] = {}
    highest = -1
    for part, folder in parts.items():
        listed = Listed()
        for file in sorted(folder.rglob("*")):
            if file.suffix.lower() not in EXTENSIONS or not file.is_file():
                continue
            name = file.relative_to(path).as_posix()
            listed.images[name] = []
            label_file = (path / "labels" / file.relative_to(path / "images")).with_suffix(".txt")
            if label_file.is_file():
                for number, box in _yolo_boxes(label_file, file):
                    highest = max(highest, number)
                    label = names[number] if names is not None and number < len(names) else str(number)
                    if names is not None and number >= len(names):
                        raise ValueError(
                            f"{label_file} has class {number}; {len(names)} classes are named: {abbreviate(names)}"
                        )
                    listed.add(name, Thing(label, box))
        found[part] = listed
    classes = tuple(names if names is not None else map(str, range(highest + 1)))
    return {part: replace(listed, classes=classes) for part, listed in found.items()}


def _yolo_classes(path: Path) -> list[str] | None:
    """Return the names of classes from data.yaml or classes.txt; None if there is neither."""
    for file in (path / "data.yaml", path / "data.yml", path / "dataset.yaml"):
        if file.is_file():
            names = (yaml.safe_load(file.read_text(encoding="utf-8")[: 1 << 20]) or {}).get("names")
            if isinstance(names, dict):
                names = [names[key] for key in sorted(names)]
            if isinstance(names, list) and names:
                return [str(name) for name in names]
    for file in (path / "classes.txt", path / "labels" / "classes.txt", path / "obj.names"):
        if file.is_file():
            return [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return None


def _yolo_boxes(file: Path, image: Path) -> Iterator[tuple[int, tuple[float, float, float, float]]]:
    size: tuple[int, int] | None = None
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        words = line.split()
        if not words:
            continue
        try:
            label, x, y, width, height = int(words[0]), *map(float, words[1:5])
            if len(words) != 5 or label < 0:
                raise ValueError
        except ValueError:
            raise ValueError(
                f"{file}, line {number}: {line[:80]!r}; a line is class, x, y, width, height, the last four in sides "
                "of the image"
            ) from None
        if size is None:
            found = header(image, name=image.name)
            size = (found.height, found.width)
        high, wide = size
        yield label, ((x - width / 2) * wide, (y - height / 2) * high, (x + width / 2) * wide, (y + height / 2) * high)


def find_image(root: Path, places: Sequence[Path], name: str) -> str | None:
    """Return where an image lies, relative to a folder; None if it is in none of the places, or outside."""
    for place in places:
        file = place / name
        try:
            if file.is_file() and file.resolve().is_relative_to(root.resolve()):
                return file.relative_to(root).as_posix()
        except (OSError, ValueError):
            continue
    return None


def _json(file: Path) -> dict[str, Any]:
    if file.stat().st_size > LARGEST:
        raise ValueError(f"{file} has {file.stat().st_size} bytes; lists of up to {LARGEST} are read")
    try:
        whole = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is no JSON: {error}") from None
    if not isinstance(whole, dict):
        raise ValueError(
            f"{file} holds a {type(whole).__name__}; COCO's format is an object with images and annotations"
        )
    return whole


LAYOUTS: tuple[tuple[str, Callable[[Path], bool], Callable[[Path], dict[str, Listed]]], ...] = (
    ("COCO", _is_coco, _read_coco),
    ("VOC", _is_voc, _read_voc),
    ("YOLO", _is_yolo, _read_yolo),
)
