"""Segmentation datasets in folders: images/masks, VOC, ADE20K, Cityscapes, COCO panoptic, Oxford pets."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...data.image import EXTENSIONS, BadSample
from ...data.reader import ReadOptions, register_reader
from ...data.source import FileSource, Names, Splits
from ...data.split import TRAIN, VAL, abbreviate
from ...support.wording import count_of
from .data import MaskTargets, make_targets
from .values import ADE20K, CITYSCAPES, CITYSCAPES_IDS, IGNORED, PETS, VOC, ClassMap, find_map, make_map

MASKS = (".png", ".bmp", ".tif", ".tiff", ".gif", ".webp")
Pairs = dict[str, list[tuple[str, str]]]  # by split, names of images and masks; "" for a missing mask


@dataclass(frozen=True)
class Layout:
    """A folder layout."""

    name: str  # for messages
    matches: Callable[[Path], bool]  # whether a folder has it
    pairs: Callable[[Path], Pairs]  # finds its images and masks
    classes: Callable[[Path], ClassMap | None] = lambda _: None  # meaning of mask values, if defined by the layout


@register_reader("masks")
class MaskFolderReader:
    """A folder of images and masks."""

    rank, task = 40, "segment"

    def matches(self, spec: str, path: Path) -> bool:
        """Whether the folder has a known layout."""
        return path.is_dir() and find_layout(path) is not None

    def open(self, spec: str, path: Path, options: ReadOptions) -> Splits:
        """Open the dataset; the task's options may define the classes."""
        task_options = getattr(options.read_targets, "keywords", {}).get("options")
        given, ignore = getattr(task_options, "classes", None), getattr(task_options, "ignore", IGNORED)
        return open_masks(path, bad_limit=options.bad_limit, given=given, ignore=ignore)


def find_layout(path: Path) -> Layout | None:
    """Return the layout of a folder; None if it is unknown."""
    return next((layout for layout in LAYOUTS if layout.matches(path)), None)


def open_masks(
    path: Path, *, bad_limit: float = 0.05, given: str | list[str] | None = None, ignore: int | None = IGNORED
) -> Splits:
    """Open a folder of images and masks; masks are read if the meaning of their values is unknown.

    Args:
        bad_limit: share of images that may lack a mask; they are reported and left out.
        given: a file of classes, or names of the values from 0 on.
        ignore: ignored value, if any.
    """
    layout = find_layout(path)
    assert layout is not None
    targets: MaskTargets | None = None
    if layout.name == "COCO panoptic":
        found, targets = _read_panoptic(path)
    else:
        found = layout.pairs(path)
    if not found.get("train"):
        raise ValueError(f"{path} has the layout of {layout.name} but no training images with masks; see docs/data.md")
    sources: dict[str, FileSource] = {}
    notes: tuple[str, ...] = (f"images and masks in the layout of {layout.name}",)
    if targets is None:
        whole = [mask for part in found.values() for image, mask in part if image and mask]
        targets = make_targets(path, whole, classes=layout.classes(path), given=given, ignore=ignore)
    notes += targets.notes
    lonely = [mask for part in found.values() for image, mask in part if not image]
    if lonely:
        notes += (
            f"{count_of(len(lonely), 'mask')} not used, because no image has the same name: {abbreviate(lonely)}",
        )
    place = {targets.files[number]: number for number in range(len(targets.files))}
    for part, both in found.items():
        pairs = [(image, mask) for image, mask in both if image]
        lacking = tuple(BadSample(image, "this image has no mask", "mask") for image, mask in pairs if not mask)
        kept = [(image, mask) for image, mask in pairs if mask]
        if len(lacking) > max(bad_limit * len(pairs), 1) or not kept:
            raise FileNotFoundError(
                f"{path}: {len(lacking)} of {len(pairs)} images of the split {part} have no mask: "
                f"{abbreviate([bad.name for bad in lacking])}; a mask has the name of its image. Add the masks, or "
                "remove the images"
            )
        rows = np.array([place[mask] for _, mask in kept], dtype=np.int64)
        source = FileSource(path, [image for image, _ in kept], replace(targets, rows=rows, notes=()))
        source.lost = lacking
        sources[part] = source
    return Splits(sources["train"], sources.get("val"), notes)


def _files(folder: Path, endings: tuple[str, ...]) -> dict[str, Path]:
    """Return the files of a folder and its subfolders by relative path without extension."""
    found: dict[str, Path] = {}
    for file in sorted(folder.rglob("*")):
        relative = file.relative_to(folder)
        hidden = any(part.startswith(".") for part in relative.parts)
        if not hidden and file.suffix.lower() in endings and file.is_file():
            stem = relative.with_suffix("").as_posix()
            if stem in found:
                raise ValueError(f"{folder} has two files named {stem}: {found[stem].name} and {file.name}; keep one")
            found[stem] = file
    return found


def _matched(root: Path, images: Path, masks: Path) -> list[tuple[str, str]]:
    """Match images and masks of two folders by name; return pairs and unmatched masks.

    Names of masks may end with `_mask`.
    """
    names = _files(masks, MASKS)
    pairs, used = [], set()
    for stem, image in _files(images, tuple(EXTENSIONS)).items():
        mask = next((names[one] for one in (stem, f"{stem}_mask", f"{stem}_labels") if one in names), None)
        used.add(mask)
        pairs.append((image.relative_to(root).as_posix(), "" if mask is None else mask.relative_to(root).as_posix()))
    lonely = [stem for stem, mask in names.items() if mask not in used]
    if lonely and len(lonely) == len(names):
        raise ValueError(
            f"none of the {len(names)} masks in {masks} has the name of an image in {images} ({abbreviate(lonely)}); "
            "give a mask the name of its image"
        )
    return pairs + [("", names[stem].relative_to(root).as_posix()) for stem in lonely]


def _part(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_dir()), None)


def _own(root: Path) -> Pairs:
    """`images/{train,val}` and `masks/{train,val}`, or both without parts."""
    images, labels = root / "images", root / "masks"
    if _part(images, TRAIN) is None:
        return {"train": _matched(root, images, labels)}
    found: Pairs = {}
    for part, names in (("train", TRAIN), ("val", VAL)):
        folder = _part(images, names)
        if folder is not None:
            beside = _part(labels, (folder.name, *names))
            if beside is None:
                raise ValueError(f"{folder} has no folder of masks; put them into {labels / folder.name}")
            found[part] = _matched(root, folder, beside)
    return found


def _swapped(root: Path) -> Pairs:
    """`train/{images,masks}` and `val/{images,masks}`."""
    folders = {part: _part(root, names) for part, names in (("train", TRAIN), ("val", VAL))}
    return {
        part: _matched(root, folder / "images", folder / "masks")
        for part, folder in folders.items()
        if folder is not None
    }


def _is_swapped(root: Path) -> bool:
    train = _part(root, TRAIN)
    return train is not None and (train / "images").is_dir() and (train / "masks").is_dir()


def _voc(root: Path) -> Pairs:
    lists = root / "ImageSets" / "Segmentation"
    pairs = _matched(root, root / "JPEGImages", root / "SegmentationClass")
    found = {part: _listed(file, pairs) for part in ("train", "val") if (file := lists / f"{part}.txt").is_file()}
    return found or {"train": [(image, mask) for image, mask in pairs if mask]}


def _listed(file: Path, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the images of a list, the first word of each line, with their masks."""
    by_stem = {Path(image).stem: (image, mask) for image, mask in pairs if image}
    stems = [line.split()[0] for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    stems = [stem for stem in stems if not stem.startswith("#")]
    missing = [stem for stem in stems if stem not in by_stem]
    if missing:
        raise FileNotFoundError(
            f"{file}: {len(missing)} of {len(stems)} listed images do not exist: {abbreviate(missing)}; add them, or "
            "remove them from the list"
        )
    return [by_stem[stem] for stem in stems]


def _ade20k(root: Path) -> Pairs:
    return {
        part: _matched(root, root / "images" / name, root / "annotations" / name)
        for part, name in (("train", "training"), ("val", "validation"))
        if (root / "images" / name).is_dir()
    }


def _cityscapes(root: Path) -> Pairs:
    found: Pairs = {}
    for part in ("train", "val"):
        pairs = []
        for image in sorted((root / "leftImg8bit" / part).glob("*/*_leftImg8bit.png")):
            stem = image.name.removesuffix("_leftImg8bit.png")
            mask = root / "gtFine" / part / image.parent.name / f"{stem}_gtFine_{_cityscapes_kind(root)}.png"
            name = mask.relative_to(root).as_posix() if mask.is_file() else ""
            pairs.append((image.relative_to(root).as_posix(), name))
        if pairs:
            found[part] = pairs
    return found


def _cityscapes_kind(root: Path) -> str:
    return "labelTrainIds" if next((root / "gtFine").rglob("*_labelTrainIds.png"), None) else "labelIds"


def _cityscapes_classes(root: Path) -> ClassMap:
    if _cityscapes_kind(root) == "labelTrainIds":
        return make_map([(name, place) for place, name in enumerate(CITYSCAPES)])
    others = tuple(value for value in range(256) if value not in CITYSCAPES_IDS)
    return ClassMap(CITYSCAPES, CITYSCAPES_IDS, ignore=others)


def _ade20k_classes(root: Path) -> ClassMap:
    return find_map(root) or ClassMap(ADE20K, tuple(range(1, 151)), ignore=(0,))  # 0 is unlabelled


def _pets(root: Path) -> Pairs:
    """`images/*.jpg`, `annotations/trimaps/*.png` and lists `annotations/{trainval,test}.txt`."""
    pairs, lists = _matched(root, root / "images", _trimaps(root)), root / "annotations"
    parts = (("train", "trainval"), ("val", "test"))
    found = {part: _listed(file, pairs) for part, name in parts if (file := lists / f"{name}.txt").is_file()}
    return found or {"train": pairs}


def _trimaps(root: Path) -> Path:
    return root / "annotations" / "trimaps"


# Errors raised by invalid values.
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError, OSError)


def _panoptic_lists(root: Path) -> dict[str, Path]:
    found = {}
    for part in ("train", "val"):
        file = next(iter(sorted((root / "annotations").glob(f"panoptic_{part}*.json"))), None)
        if file is not None and file.is_file():
            found[part] = file
    return found


def _read_panoptic(root: Path) -> tuple[Pairs, MaskTargets]:
    """Read COCO panoptic annotations: colours of masks are segment ids, whose categories are listed."""
    pairs: Pairs = {}
    names: list[str] = []
    segments: list[dict[int, int]] = []
    categories: list[dict[str, Any]] = []
    outputs: tuple[str, ...] = ()
    for part, file in _panoptic_lists(root).items():
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            own = sorted(content["categories"], key=lambda one: int(one["id"]))
            categories = categories or own
            outputs = tuple(str(one["name"]) for one in categories)
            place = {int(one["id"]): number for number, one in enumerate(categories)}
            images = {one["id"]: str(one["file_name"]) for one in content["images"]}
            masks = root / "annotations" / file.stem
            folder = _part(root, (file.stem.removeprefix("panoptic_"), f"{part}2017", part)) or root
            pairs[part] = []
            for entry in content["annotations"]:
                mask = _inside(root, masks / str(entry["file_name"]))
                image = _inside(root, folder / images[entry["image_id"]])
                pairs[part].append((image, mask if (root / mask).is_file() else ""))
                names.append(mask)
                segments.append({int(s["id"]): place[int(s["category_id"])] for s in entry["segments_info"]})
        except _MALFORMED as error:
            raise ValueError(f"{file} is not a list of panoptic masks in COCO's format ({repr(error)[:300]})") from None
    classes = ClassMap(outputs, tuple(range(len(outputs))))
    rows = np.arange(len(names))
    return pairs, MaskTargets(rows, outputs, (), root, Names(names), classes, segments)


def _inside(root: Path, path: Path) -> str:
    """Return a listed path relative to the root; paths outside are refused."""
    resolved = path.resolve()
    if not resolved.is_relative_to(root.resolve()):
        raise ValueError(f"{path} lies outside of {root}")
    return path.relative_to(root).as_posix()


def _has(*parts: str) -> Callable[[Path], bool]:
    return lambda root: all((root / part).is_dir() for part in parts)


LAYOUTS = (
    Layout("images and masks", _has("images", "masks"), _own),
    Layout("train and val with images and masks", _is_swapped, _swapped),
    Layout("VOC", _has("JPEGImages", "SegmentationClass"), _voc, lambda _: ClassMap(VOC, tuple(range(21)))),
    Layout("ADE20K", _has("images/training", "annotations/training"), _ade20k, _ade20k_classes),
    Layout("Cityscapes", _has("leftImg8bit", "gtFine"), _cityscapes, _cityscapes_classes),
    Layout("COCO panoptic", lambda root: "train" in _panoptic_lists(root), lambda _: {}),
    Layout(
        "Oxford-IIIT pets", lambda root: _trimaps(root).is_dir() and (root / "images").is_dir(), _pets,
        lambda _: make_map([(name, place + 1) for place, name in enumerate(PETS)]),
    ),
)  # fmt: skip
