"""Detection datasets in folders: COCO JSON, VOC XML, YOLO text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...data.reader import ReadOptions, register_reader
from ...data.source import FileSource, Names, Splits
from ...data.split import abbreviate
from ...support.wording import count_are, count_of
from .coco import is_coco, read_coco
from .data import BoxTargets
from .listed import ObjectList
from .regions import MOST_LAYERS, layers_needed
from .voc import is_voc, read_voc
from .yolo import is_yolo, read_yolo

Read = Callable[[Path], tuple[dict[str, ObjectList], tuple[str, ...]]]
LAYOUTS: tuple[tuple[str, Callable[[Path], bool], Read], ...] = (
    ("COCO", is_coco, read_coco),
    ("VOC", is_voc, read_voc),
    ("YOLO", is_yolo, read_yolo),
)
MOST_LOOKED = 50_000  # most objects whose masks are checked for overlap


@register_reader("objects")
class ObjectFolderReader:
    """A folder of images and annotations."""

    rank, task = 45, "detect"

    def matches(self, spec: str, path: Path) -> bool:
        """Whether the folder has a known layout."""
        return path.is_dir() and any(matches(path) for _, matches, _ in LAYOUTS)

    def open(self, spec: str, path: Path, options: ReadOptions) -> Splits:
        """Open the dataset without decoding images."""
        return open_objects(path, bad_limit=options.bad_limit)


def require_layout(spec: str) -> None:
    """Refuse a folder of unknown layout, with the reason."""
    path = Path(spec).expanduser()
    if not spec or not path.is_dir() or ObjectFolderReader().matches(spec, path):
        return
    lists = [file.name for file in sorted(path.glob("*.json"))]
    inner = next(
        (one for one in sorted(path.rglob("*")) if one.is_dir() and ObjectFolderReader().matches("", one)), None
    )
    hint = "docs/detection.md shows the layouts of COCO, VOC and YOLO"
    if inner is not None:
        hint = f"{inner} is: give that"
    elif lists:
        hint = f"rename its annotation files ({abbreviate(lists)}): train.json for training, val.json for validation"
    raise ValueError(f"{path} does not have the layout of a detection dataset; {hint}")


def open_objects(path: Path, *, bad_limit: float = 0.05) -> Splits:
    """Read the annotations of a folder.

    Args:
        bad_limit: share of a split's images, and of its objects, that may be missing.
    """
    name, read = next((name, read) for name, matches, read in LAYOUTS if matches(path))
    parts, remarks = read(path)
    classes = tuple(dict.fromkeys(label for part in parts.values() for label in part.classes))
    sources: dict[str, FileSource] = {}
    notes: list[str] = [f"images and objects in the layout of {name}", *remarks]
    for part, listed in parts.items():
        _require_most(path, part, listed, bad_limit)
        targets = make_targets(listed, classes)
        source = FileSource(path, list(listed.images), targets)
        source.lost = tuple(listed.lost)
        sources[part] = source
        notes += _notes(part, listed, targets)
    return Splits(sources["train"], sources.get("val"), tuple(notes))


def _require_most(path: Path, part: str, listed: ObjectList, bad_limit: float) -> None:
    """Refuse a split with too many missing images or invalid objects."""
    for kinds, there, noun, advice in (
        (("unknown",), listed.objects, "objects", "add the missing images or categories, or remove these objects"),
        (None, len(listed.images), "images", "add the files, or remove the images from the list"),
    ):
        lost = [bad for bad in listed.lost if (bad.kind == "unknown") is (kinds is not None)]
        total = there if kinds else there + len(lost)
        if lost and len(lost) > max(bad_limit * total, 1):
            named = abbreviate([str(bad) for bad in lost])
            raise ValueError(
                f"{path}: {len(lost)} of {total} {noun} of the split {part} cannot be used: {named}; {advice}"
            )
    if not listed.images:
        raise ValueError(f"{path}: none of the images listed in the split {part} exists; see docs/detection.md")


def make_targets(listed: ObjectList, classes: Sequence[str]) -> BoxTargets:
    """Return a split's annotations as targets."""
    number = {name: place for place, name in enumerate(classes)}
    things = [thing for one in listed.images.values() for thing in one]
    names = list(listed.images)
    targets = BoxTargets(
        np.arange(len(names), dtype=np.int64),
        tuple(classes),
        starts=np.cumsum([0, *(len(one) for one in listed.images.values())], dtype=np.int64),
        boxes=np.array([thing.box for thing in things], dtype=np.float32).reshape(-1, 4),
        labels=np.array([number[thing.label] for thing in things], dtype=np.int64),
        crowd=np.array([thing.crowd for thing in things], dtype=bool),
        areas=np.array([thing.area for thing in things], dtype=np.float64),
        regions=[thing.region for thing in things] if any(thing.region is not None for thing in things) else None,
        names=Names(names),
        sizes=np.array([listed.sizes.get(name, (0, 0)) for name in names], dtype=np.int64).reshape(-1, 2),
        remarks={place: tuple(listed.remarks[name]) for place, name in enumerate(names) if name in listed.remarks},
    )
    return replace(targets, layers=_find_layers(targets))


def _find_layers(targets: BoxTargets) -> int:
    """Return the number of mask layers that a dataset needs, from a sample of images."""
    found, looked = 1, 0
    regions, count = targets.regions, len(targets)
    if regions is None or not count:
        return found
    for index in np.random.default_rng(0).permutation(count):
        here = targets.objects(int(index))
        if here.stop - here.start < 2:
            continue
        size_listed, boxes = targets.sizes[index], targets.boxes[here]
        size = size_listed if size_listed.all() else np.ceil(boxes[:, [3, 2]].max(0)).clip(1)
        looked += here.stop - here.start
        if found == MOST_LAYERS or looked > MOST_LOOKED:
            break
        found = max(found, layers_needed(regions[here], boxes, (int(size[0]), int(size[1]))))
    return found


def _notes(part: str, listed: ObjectList, targets: BoxTargets) -> Iterator[str]:
    """Yield notes on a split."""
    if listed.remarks:
        total = sum(map(len, listed.remarks.values()))
        yield f"{part}: problems with {count_of(total, 'object')}: {abbreviate(list(listed.all_remarks()))}"
    if beyond := int(targets.beyond().sum()):
        many = f"{beyond:,} boxes extend beyond their images; they are"
        yield f"{part}: {'1 box reaches beyond its image; it is' if beyond == 1 else many} cut at the edges"
    if empty := targets.empty():
        yield f"{part}: {count_are(empty, 'image')} without objects; they serve as negative examples"
    absent = [name for name, count in zip(targets.outputs, targets.counts(), strict=True) if not count]
    if absent and part == "train":
        yield f"no training object has the class {abbreviate(absent)}; the model cannot learn it"
    if targets.crowd.any():
        regions = count_are(int(targets.crowd.sum()), "region")
        yield f"{part}: {regions} of crowds or difficult objects, where predictions are neither right nor wrong"
    if targets.regions is not None and (without := sum(region is None for region in targets.regions)):
        yield f"{part}: {count_of(without, 'object')} without a mask; their filled boxes are used instead"
