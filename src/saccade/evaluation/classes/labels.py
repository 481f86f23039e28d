"""Map labels to a model's classes: by name, by ImageNet ids and numbers, or by a user's file.

ImageNet-A: folders named by WordNet ids, and a list of the 200 classes that logits are restricted to. ImageNet-V2:
folders named by class numbers, which must not be sorted as text. ReaL: a JSON list with the right classes of every
validation image.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from ...data.source import Source
from ...data.split import abbreviate

WORDNET = re.compile(r"n\d{8}")
VALIDATION = re.compile(r"ILSVRC2012_val_(\d{8})")
IMAGENET = 1000


class LabelError(ValueError):
    """Labels that do not match a model's classes, or an unusable file of labels."""


@dataclass(frozen=True)
class LabelFile:
    """A user's file of labels: one of the two attributes is set.

    Args:
        lists: the right classes of each ImageNet validation image (ReaL); empty without consensus.
        names: maps class names of the dataset to class names or numbers of the model.
    """

    path: Path
    lists: list[list[int]] | None = None
    names: dict[str, str | int] | None = None


@dataclass(frozen=True)
class Truth:
    """The right classes of images, for one model."""

    classes: tuple[str, ...]  # names of the selected classes
    columns: np.ndarray  # their indices in the model's logits
    valid: np.ndarray  # right classes of each image, N, len(classes) bool
    notes: tuple[str, ...] = ()  # how labels were mapped, if not by name


def read_truth(
    source: Source,
    classes: tuple[str, ...],
    *,
    places: np.ndarray | None = None,
    labels: LabelFile | None = None,
    subset: Sequence[str] | None = None,
    whose: str = "the run",
) -> Truth:
    """Return the right classes of images.

    Args:
        classes: the model's classes, in the order of its logits.
        places: indices of the images; default: `labelled_places`.
        labels: a user's file, as returned by `read_labels`.
        subset: classes to choose from, as returned by `read_subset`; default: all.
    """
    notes: list[str] = []
    places = labelled_places(source, labels) if places is None else places
    if labels is not None and labels.lists is not None:
        right = _listed(source, places, labels, len(classes), whose)
        notes.append(f"labels are taken from {labels.path.name}; an image may have several")
    else:
        found, how = _match_used(source, classes, labels, whose)
        notes += how
        right = [[int(index)] for index in found[source.labels[places]]]
    columns = np.arange(len(classes))
    if subset is not None:
        columns = match_classes(subset, classes, whose=whose)[0]
        notes.append(f"predictions are restricted to {len(columns)} of {len(classes)} classes")
    place = np.full(len(classes), -1)
    place[columns] = np.arange(len(columns))
    valid = np.zeros((len(right), len(columns)), dtype=bool)
    for row, indices in enumerate(right):
        kept = [place[index] for index in indices if place[index] >= 0]
        if not kept:
            raise LabelError(
                f"{source.name(int(places[row]))} has the class {classes[indices[0]]!r}, which is not in the subset; "
                "give only images of the subset's classes, or a subset with all classes of the images"
            )
        valid[row, kept] = True
    return Truth(tuple(classes[column] for column in columns), columns, valid, tuple(notes))


def match_classes(
    names: Sequence[str], classes: tuple[str, ...], *, whose: str = "the run"
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Map names to a model's classes; return the indices, and how they were mapped if not by name.

    Args:
        names: class names of the model; for ImageNet classes also WordNet ids or numbers from 0.
    """
    by_name = {name: index for index, name in enumerate(classes)}
    if all(name in by_name for name in names):
        return np.array([by_name[name] for name in names], dtype=np.int64), ()
    if is_imagenet(classes):
        by_id = {name: index for index, name in enumerate(_wordnet_ids())}
        if all(name in by_id for name in names):
            return np.array([by_id[name] for name in names]), ("classes are read as WordNet ids",)
        if all(name.isdecimal() and int(name) < len(classes) for name in names):
            return np.array([int(name) for name in names]), ("classes are read as ImageNet's class numbers, from 0",)
    strange = [name for name in names if name not in by_name]
    raise LabelError(
        f"the images have {len(names)} classes, and {whose} does not have {abbreviate(strange)}; its {len(classes)} "
        f"classes are {abbreviate(classes)}. Give images of its classes, or --labels FILE.json with "
        '{"class of the images": "class of the run", ...}'
    )


def is_imagenet(classes: tuple[str, ...]) -> bool:
    """Whether classes are ImageNet-1k's in the usual order, as WordNet ids or timm's descriptions."""
    if len(classes) != IMAGENET:
        return False
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    return classes in (
        tuple(_wordnet_ids()),
        tuple(info.index_to_description(index) for index in range(IMAGENET)),
    )


def read_labels(path: str | Path) -> LabelFile:
    """Read a JSON file: ReaL's list of lists of class numbers, or a mapping of class names."""
    file = Path(path).expanduser()
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LabelError(
            f"{file} does not exist; --labels takes ReaL's real.json or an object of class names"
        ) from None
    except ValueError as error:
        raise LabelError(f"{file} is not JSON ({error}); --labels takes real.json or an object of names") from None
    if isinstance(found, list) and found and all(_is_numbers(item) for item in found):
        return LabelFile(file, lists=found)
    if isinstance(found, dict) and found and all(isinstance(value, str | int) for value in found.values()):
        return LabelFile(file, names=found)
    raise LabelError(
        f"{file} is neither a list of lists of class numbers, one per image, as ReaL's real.json, nor an object "
        '{"class of the images": "class of the run" or its number, ...}'
    )


def read_subset(path: str | Path) -> list[str]:
    """Read a text file with a class a line: name, WordNet id or number; text after an id or a # is ignored."""
    file = Path(path).expanduser()
    try:
        lines = [line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise LabelError(f"{file} does not exist; --subset takes a text file with one class per line") from None
    except UnicodeDecodeError:
        raise LabelError(f"{file} is not text; --subset takes a text file with one class per line") from None
    found = [line.split()[0] if WORDNET.match(line) else line for line in lines if line]
    twice = sorted({name for name in found if found.count(name) > 1})
    if len(found) < 2 or twice:
        reason = f"names {abbreviate(twice)} twice" if twice else f"names {len(found)} classes"
        raise LabelError(f"{file} {reason}; --subset needs two or more different classes, one per line")
    return found


def labelled_places(source: Source, labels: LabelFile | None) -> np.ndarray:
    """Return the indices of labelled images: all, except those without consensus in ReaL."""
    if labels is None or labels.lists is None:
        return np.arange(len(source))
    places = np.flatnonzero([bool(labels.lists[number]) for number in _numbers(source, labels)])
    if not len(places):
        raise LabelError(f"{labels.path} has no label for any of the {len(source)} images")
    return places


def _match_used(
    source: Source, classes: tuple[str, ...], labels: LabelFile | None, whose: str
) -> tuple[np.ndarray, list[str]]:
    """Return the model's class for each class of the source; -1 for classes without images."""
    used = np.flatnonzero(source.counts())
    names = [source.classes[index] for index in used]
    notes = []
    if labels is not None and labels.names is not None:
        missing = [name for name in names if name not in labels.names]
        if missing:
            raise LabelError(f"{labels.path} does not map the classes {abbreviate(missing)} of the images")
        targets = [labels.names[name] for name in names]
        outside = [t for t in targets if isinstance(t, int) and not 0 <= t < len(classes)]
        if outside:
            raise LabelError(
                f"{labels.path} maps to the class {outside[0]}; {whose} has classes 0 to {len(classes) - 1}"
            )
        names = [classes[target] if isinstance(target, int) else target for target in targets]
        notes.append(f"classes are mapped by {labels.path.name}")
    found, how = match_classes(names, classes, whose=whose)
    lookup = np.full(len(source.classes), -1, dtype=np.int64)
    lookup[used] = found
    if len(used) < len(classes):
        notes.append(f"the images have {len(set(found.tolist()))} of the {len(classes)} classes of {whose}")
    return lookup, [*how, *notes]


def _listed(source: Source, places: np.ndarray, labels: LabelFile, classes: int, whose: str) -> list[list[int]]:
    assert labels.lists is not None
    numbers = _numbers(source, labels)
    found = [labels.lists[numbers[int(place)]] for place in places]
    largest = max(index for indices in labels.lists for index in [-1, *indices])
    if largest >= classes:
        raise LabelError(f"{labels.path} has the class number {largest}; {whose} has classes 0 to {classes - 1}")
    return found


def _numbers(source: Source, labels: LabelFile) -> list[int]:
    """Return each image's index in ReaL's list: the number in its file name, else its position by file name."""
    assert labels.lists is not None
    names = [PurePosixPath(source.name(place)).name for place in range(len(source))]
    matches = [VALIDATION.search(name) for name in names]
    if all(matches):
        numbers = [int(match[1]) - 1 for match in matches if match]
        outside = [number for number in numbers if not 0 <= number < len(labels.lists)]
        if outside:
            raise LabelError(
                f"{labels.path} has labels for {len(labels.lists)} images, but the dataset has number {outside[0] + 1}"
            )
        return numbers
    if len(names) != len(labels.lists):
        raise LabelError(
            f"{labels.path} has labels for {len(labels.lists)} images, but the dataset has {len(names)}, whose file "
            "names do not contain their numbers (ILSVRC2012_val_00000001.JPEG); give the whole validation set"
        )
    return np.argsort(np.argsort(np.array(names), kind="stable"), kind="stable").tolist()


def _wordnet_ids() -> list[str]:
    from timm.data import ImageNetInfo

    return list(ImageNetInfo("imagenet-1k").label_names())


def _is_numbers(item: object) -> bool:
    return isinstance(item, list) and all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in item)
