"""COCO annotations."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...data.image import BadSample
from ...data.split import TEST, TRAIN, VAL, abbreviate, choose_split
from ...support.files import open_regular, read_small
from ...support.telling import tell_large
from .listed import ListedObject, ObjectList, find_image, missing
from .regions import clean_region

LARGEST = 2 << 30  # largest file in bytes
LOOKED = 1 << 16  # bytes read to recognise a file
KEYS = (b'"images"', b'"annotations"', b'"categories"', b'"info"', b'"bbox"')
ROLES = {"train": TRAIN, "val": (*VAL, *TEST)}
FOLDERS = ("images", "data", "JPEGImages")  # image folders, besides folders named after splits


def find_lists(path: Path) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Find a folder's annotation files by split; return them and remarks on unused ones.

    Names are train.json, instances_train.json, annotations/instances_train2017.json, train/_annotations.coco.json and
    the like; a single file of any name is the training split.
    """
    named: dict[str, Path] = {}
    single = []
    for folder in (path, path / "annotations"):
        for file in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            name = file.stem.lower().removeprefix("instances_").rstrip("0123456789")
            if name in (*TRAIN, *VAL, *TEST):
                named.setdefault(name, file)
            elif _seems_coco(file):
                single.append(file)
    for name in (*TRAIN, *VAL, *TEST):
        if (file := path / name / "_annotations.coco.json").is_file():
            named.setdefault(name, file)
    roles, notes = choose_split(list(named))
    if roles:
        return {part: named[name] for part, name in roles.items()}, notes
    return ({"train": single[0]} if len(single) == 1 else {}), ()


def is_coco(path: Path) -> bool:
    """Whether a folder has COCO annotations."""
    lists, _ = find_lists(path)
    return "train" in lists and _seems_coco(lists["train"])


def _seems_coco(file: Path) -> bool:
    try:
        with open_regular(file) as opened:
            begin = opened.read(LOOKED)
    except OSError:
        return False
    return begin.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[") and any(key in begin for key in KEYS)


def read_coco(path: Path) -> tuple[dict[str, ObjectList], tuple[str, ...]]:
    """Read a folder's annotations by split; return them and remarks."""
    lists, notes = find_lists(path)
    return {part: _read_list(path, file, part) for part, file in lists.items()}, notes


def _read_list(root: Path, file: Path, part: str) -> ObjectList:
    whole = _load(file)
    categories = {key: str(one["name"]) for key, one in _entries(whole, "categories", "name", file).items()}
    if len(set(categories.values())) < len(categories):
        raise ValueError(
            f"{file} has two categories with the same name: {abbreviate(list(categories.values()))}; rename one"
        )
    images = _entries(whole, "images", "file_name", file)
    names = _find_images(root, file, part, images)
    listed = ObjectList(classes=tuple(categories[one] for one in sorted(categories, key=_order)))
    listed.images = {name: [] for name in names.values() if name is not None}
    for key, name in names.items():
        if name is not None and (size := _size(images[key])) is not None:
            listed.sizes[name] = size
    lost_objects: dict[Any, int] = {key: 0 for key, name in names.items() if name is None}
    for place, one in enumerate(whole["annotations"]):
        if not isinstance(one, dict):
            raise ValueError(
                f"{file}: annotation {place + 1} is {type(one).__name__}; each must be an object with a bbox"
            )
        image, category = _known(one.get("image_id"), names), _known(one.get("category_id"), categories)
        if image is None or category is None:
            key = "image_id" if image is None else "category_id"
            reason = f"its {key} {one.get(key)!r} is not in the list"
            listed.lost.append(BadSample(f"annotation {one.get('id', place + 1)} of {file.name}", reason, "unknown"))
            listed.objects += 1
        elif (name := names[image]) is None:
            lost_objects[image] += 1
            listed.objects += 1
        else:
            _add(listed, name, one, categories[category], file)
    listed.lost += [missing(images[key]["file_name"], objects=count) for key, count in lost_objects.items()]
    return listed


def _load(file: Path) -> dict[str, Any]:
    tell_large(file)
    try:
        whole = json.loads(read_small(file, most=LARGEST))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    if not isinstance(whole, dict):
        raise ValueError(
            f"{file} holds a {type(whole).__name__}; the COCO format is an object with images, annotations and "
            "categories"
        )
    for key in ("images", "annotations", "categories"):
        if not isinstance(whole.get(key), list):
            raise ValueError(f"{file} has no list {key!r}; the COCO format has images, annotations and categories")
    return whole


def _entries(whole: Mapping[str, Any], kind: str, key: str, file: Path) -> dict[Any, dict[str, Any]]:
    """Return the entries of a list by id."""
    found: dict[Any, dict[str, Any]] = {}
    for place, one in enumerate(whole[kind]):
        if not isinstance(one, dict) or not _is_id(one.get("id")) or not isinstance(one.get(key), str) or not one[key]:
            raise ValueError(
                f"{file}: entry {place + 1} of {kind} is {repr(one)[:120]}; each must have an id (a number or a "
                f"string) and a {key} (a string)"
            )
        if one["id"] in found:
            raise ValueError(f"{file} has two entries of {kind} with the id {one['id']!r}; give each entry its own id")
        found[one["id"]] = one
    return found


def _is_id(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, int | float) and type(value) is not bool and value == value)


def _known(value: Any, known: Mapping[Any, Any]) -> Any:
    """Return an id if it is known; ids as text and as number are equal."""
    if not _is_id(value):
        return None
    if value in known:
        return value
    other: Any = str(value)
    if isinstance(value, str):
        other = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None
    return other if other in known else None


def _order(key: Any) -> tuple[int, float, str]:
    return (0, float(key), "") if isinstance(key, int | float) else (1, 0.0, key)


def _find_images(root: Path, file: Path, part: str, images: Mapping[Any, Mapping[str, Any]]) -> dict[Any, str | None]:
    """Return the paths of images by id; None for missing ones."""
    parts = ROLES[part]
    places = [file.parent, root, *(root / name for name in (*FOLDERS, *parts))]
    places += [root / "images" / name for name in parts]
    places += [folder for name in parts for folder in sorted(root.glob(f"{name}[0-9]*")) if folder.is_dir()]
    places += [folder for name in parts for folder in sorted(root.glob(f"images/{name}[0-9]*")) if folder.is_dir()]
    names: dict[Any, str | None] = {}
    taken: dict[str, Any] = {}
    for key, one in images.items():
        name = names[key] = find_image(root, places, one["file_name"])
        if name is not None and taken.setdefault(name, key) != key:
            raise ValueError(
                f"{file}: the images {taken[name]!r} and {key!r} are the same file, {name}; put its objects under "
                "one id"
            )
    return names


def _size(one: Mapping[str, Any]) -> tuple[int, int] | None:
    height, width = one.get("height"), one.get("width")
    whole = all(isinstance(side, int) and type(side) is not bool and side > 0 for side in (height, width))
    return (int(height or 0), int(width or 0)) if whole else None


def _add(listed: ObjectList, name: str, one: Mapping[str, Any], label: str, file: Path) -> None:
    box, crowd = one.get("bbox"), one.get("iscrowd", 0)
    which = f"{file}: annotation {repr(one.get('id'))[:40]} has"
    if not isinstance(box, list) or len(box) != 4 or not all(type(value) in (int, float) for value in box):
        raise ValueError(f"{which} the bbox {repr(box)[:80]}; it must be left, top, width, height")
    if crowd not in (0, 1, None):
        raise ValueError(f"{which} iscrowd {repr(crowd)[:40]}; it must be 0 or 1")
    try:
        left, top, width, height = map(float, box)
    except OverflowError:
        left, top, width, height = (math.inf,) * 4
    region, wrong = clean_region(one.get("segmentation"))
    area: Any = one.get("area")
    area = float(area) if type(area) in (int, float) and 0 < area < math.inf else 0.0
    listed.add(name, ListedObject(label, (left, top, left + width, top + height), bool(crowd), region, area))
    if wrong is not None:
        fallback = "its box is used" if region is None else "its other polygons are used"
        listed.remark(name, f"a {label}: {wrong}; {fallback}")
