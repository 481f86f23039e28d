"""Targets of segmentation: mask files, which are read with their images."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...data.frame import pad_runs, to_runs
from ...data.framing import Box, Encoded, ImageEncoder
from ...data.image import BadSample, decode_values
from ...data.sides import SideFraming
from ...data.source import Names, Sample
from ...data.split import abbreviate
from ...data.table import Table
from ...data.targets import Targets
from .augment import TRIES
from .values import IGNORED, IN_COLOUR, ClassMap, find_map, guess_map, make_map, pack, read_map

COLUMNS = ("mask", "mask_path", "segmentation", "annotation")
LOOKED = 500  # masks from which values and class frequencies are estimated
MEASURED = 24  # masks in which the thinnest class is looked for
LEAST_SHARE = 1e-4  # of their pixels: smaller classes, such as stray pixels, say nothing about thin details
THREADS = 4
SHARED = 128  # rows of a crop in which classes are counted


@dataclass(frozen=True)
class MaskTargets(Targets):
    """Mask targets: rows are indices in `files`, N int64; outputs are class names."""

    task = "segment"
    noun = "classes"
    counted = "pixels"
    in_rows = False

    root: Path = field(default_factory=Path)  # folder that file names are relative to
    files: Names = field(default_factory=lambda: Names([]))  # names of all masks
    classes: ClassMap | None = None  # meaning of mask values
    # for panoptic masks, the class of each segment id by file
    segments: "Sequence[dict[int, int]] | None" = None

    def require(self, where: str) -> None:
        """Refuse fewer than two classes."""
        if len(self.outputs) < 2:
            raise ValueError(
                f"{where} has masks of {len(self.outputs)} class ({abbreviate(self.outputs)}); segmentation needs "
                "two or more"
            )

    def mask(self, index: int) -> np.ndarray:
        """Return a sample's classes, H, W int16, -1 for ignored pixels, or raise BadSample."""
        place = int(self.rows[index])
        name = self.files[place].encode(errors="backslashreplace").decode()
        assert self.classes is not None
        if self.segments is None:
            values = decode_values(self.root / self.files[place], name=name, colours=self.classes.colours)
            return self.classes.read(values, name=name)
        ids = pack(decode_values(self.root / self.files[place], name=name, colours=True)[..., ::-1])  # r + 256 g + ...
        known = self.segments[place]
        found, where = np.unique(ids, return_inverse=True)
        unknown = [int(one) for one in found if one and int(one) not in known]
        if unknown:
            raise BadSample(
                name, f"it has segments that are not in its list: {abbreviate(list(map(str, unknown)))}", "mask"
            )
        lookup = np.array([known.get(int(one), -1) for one in found], dtype=np.int16)
        return lookup[where].reshape(ids.shape)

    def read(self, index: int) -> dict[str, np.ndarray]:
        """Return a sample's mask, which is framed with the image."""
        return {"mask": self.mask(index)}

    def describe(self, index: int) -> str:
        """Return a description of a mask that identifies it."""
        try:
            return f"mask {hashlib.blake2b(self.mask(index).tobytes(), digest_size=4).hexdigest()}"
        except BadSample as bad:
            return bad.reason

    def problems(self, index: int, size: tuple[int, int]) -> Iterator[BadSample]:
        """Yield problems of a sample's mask, for an image of the given height and width."""
        try:
            mask = self.mask(index)
        except BadSample as bad:
            yield bad if bad.kind == "mask" else BadSample(bad.name, f"its mask: {bad.reason}", "mask")
            return
        if mask.shape != tuple(size):
            yield other_size(self.files[int(self.rows[index])], mask.shape, tuple(size))
        elif (mask < 0).all():
            yield BadSample(self.files[int(self.rows[index])], "all pixels of its mask are ignored", "mask")

    def balance(self) -> np.ndarray:
        """Return the pixels of each class in all readable masks."""
        return self.pixels(len(self))

    def pixels(self, limit: int = LOOKED) -> np.ndarray:
        """Return the pixels of each class in at most `limit` evenly spaced masks."""
        total = np.zeros(len(self.outputs), dtype=np.int64)
        places = np.unique(np.linspace(0, len(self) - 1, min(limit, len(self))).round().astype(int))

        def count(index: int) -> np.ndarray | None:
            try:
                mask = self.mask(int(index))
            except BadSample:
                return None
            return np.bincount(mask[mask >= 0].ravel(), minlength=len(total))

        with ThreadPoolExecutor(THREADS) as pool:
            for found in pool.map(count, places.tolist()):
                total += 0 if found is None else found
        return total

    def thinnest(self) -> float | None:
        """Return the pixels across the thinnest class: twice its area divided by its border, as of a long strip."""
        area, border = np.zeros(len(self.outputs)), np.zeros(len(self.outputs))
        for index in np.unique(np.linspace(0, len(self) - 1, min(MEASURED, len(self))).round().astype(int)):
            try:
                mask = self.mask(int(index))
            except BadSample:
                continue
            area += np.bincount(mask[mask >= 0], minlength=len(area))
            for one, other in ((mask[1:], mask[:-1]), (mask[:, 1:], mask[:, :-1])):
                meet = (one != other) & (one >= 0) & (other >= 0)
                border += np.bincount(one[meet], minlength=len(area)) + np.bincount(other[meet], minlength=len(area))
        known = (area > LEAST_SHARE * area.sum()) & (border > 0)
        return float((2 * area[known] / border[known]).min()) if known.any() else None

    def update(self, digest: "hashlib._Hash") -> None:
        """Update a digest with classes and mask names."""
        digest.update("\0".join(self.outputs).encode())
        for row in self.rows:
            digest.update(self.files[int(row)].encode(errors="surrogateescape") + b"\0")


@dataclass(frozen=True)
class MaskEncoder(ImageEncoder):
    """Encodes images and masks.

    Args:
        own: also give the images' `size`, and their masks at that size as runs, `mask_values` and `mask_runs`.
        cat_max_ratio: largest share of a class in a crop of `SideFraming`, below which one of ten crops is looked for.
    """

    own: bool = False
    cat_max_ratio: float = 1.0

    def box(self, sample: Sample, size: tuple[int, int], word: int) -> Box:
        """Return the box that is shown; one with several classes, if there is a limit."""
        box = super().box(sample, size, word)
        if self.cat_max_ratio < 1 and isinstance(self.framing, SideFraming) and sample.target is not None:
            for number in range(TRIES):
                if largest_share(sample.target["mask"], box) < self.cat_max_ratio:
                    break
                box = self.framing.moved(box, size, word, number)
        return box

    def __call__(self, sample: Sample, word: int = 0) -> Encoded:
        """Return a sample as tensors, the mask as int16."""
        if sample.target is not None:
            mask, image = sample.target["mask"], sample.inputs["image"]
            if mask.shape != image.shape[:2]:
                raise other_size(sample.name, mask.shape, image.shape[:2])
        found = super().__call__(sample, word)
        if "mask" not in found:
            return found
        found["mask"] = found["mask"].to(torch.int16)
        if self.own:
            found["mask_values"], found["mask_runs"] = to_runs(mask)
            found["size"] = torch.tensor(mask.shape)
        return found

    def collate(self, samples: list[Encoded]) -> dict[str, Tensor]:
        """Stack samples into a batch; runs are padded."""
        return super().collate(pad_runs(samples))


def largest_share(mask: np.ndarray, box: Box) -> float:
    """Return the share of the most frequent class of a mask, H, W, in a box, on a grid; 1 without any."""
    left, top, right, bottom = (max(round(side), 0) for side in box)
    step = max((bottom - top) // SHARED, 1)
    counts = np.bincount(mask[top:bottom:step, left:right:step].ravel() + 1)[1:]  # without ignored pixels
    return float(counts.max() / counts.sum()) if counts.any() else 1.0


def other_size(name: str, mask: tuple[int, ...], image: tuple[int, ...]) -> BadSample:
    """Return the fault of a mask with another size than its image."""
    turned = "; the image is rotated by its EXIF orientation, the mask is not" if mask == image[::-1] else ""
    reason = (
        f"its mask is {mask[1]} x {mask[0]} pixels, but the image is {image[1]} x {image[0]}{turned}; make them the "
        "same size"
    )
    return BadSample(name, reason, "mask")


def make_targets(
    root: Path,
    names: Sequence[str],
    *,
    classes: ClassMap | None,
    given: str | list[str] | None = None,
    ignore: int | None = IGNORED,
    notes: tuple[str, ...] = (),
) -> MaskTargets:
    """Return masks as targets; the meaning of values is given, read from a file, or guessed.

    Args:
        root: folder that names are relative to.
        names: names of the masks, one a sample.
        classes: meaning of their values, if known.
        given: a file of classes, or names of the values from 0 on, as given by the user.
        ignore: ignored value.
        notes: remarks so far.
    """
    if given is not None:
        if isinstance(given, str):
            classes = read_map(Path(given).expanduser(), ignore=ignore)
        else:
            classes = make_map([(name, place) for place, name in enumerate(given)], ignore=ignore)
    classes = classes or find_map(root, ignore=ignore)
    if classes is None:
        classes, more = guess_map(_values(root, names), ignore=ignore)
        notes += more
    unique = list(dict.fromkeys(names))
    place = {name: number for number, name in enumerate(unique)}
    rows = np.array([place[name] for name in names], dtype=np.int64)
    return MaskTargets(rows, classes.names, notes, root=root, files=Names(unique), classes=classes)


def _values(root: Path, names: Sequence[str]) -> set[int]:
    """Return the values in masks; colours are refused, since their meaning is unknown."""
    found: set[int] = set()
    nothing = ClassMap(("none",), (0,))
    every = max(-(-len(names) // LOOKED), 1)

    def look(name: str) -> set[int]:
        try:
            return set(np.unique(nothing._codes(decode_values(root / name, name=name), name)).tolist())
        except BadSample as bad:
            if bad.reason.startswith(IN_COLOUR):
                raise ValueError(str(bad)) from None
            return set()

    with ThreadPoolExecutor(THREADS) as pool:
        for values in pool.map(look, names[::every]):
            found |= values
    if not found:
        raise ValueError(f"none of the masks in {root} can be read; `saccade data check` lists the problems")
    return found


def read_masks(table: Table, *, given: str | list[str] | None, ignore: int | None) -> MaskTargets:
    """Read a list's column of masks, with paths relative to the list."""
    names = table.find(COLUMNS)
    if names is None:
        raise table.refuse(f"one named {' or '.join(COLUMNS[:2])} with the path of each image's mask")
    blank = next((row for row, name in enumerate(names) if not name), None)
    if blank is not None:
        raise ValueError(f"{table.path}: row {blank + 1} has no mask; fill it in or remove the row")
    missing = [name for name in names if not os.path.exists(table.path.parent / name)]
    if len(missing) > max(0.05 * len(names), 1) or (missing and len(missing) == len(names)):
        raise FileNotFoundError(
            f"{table.path}: {len(missing)} of {len(names)} listed masks do not exist: {abbreviate(missing)}; paths "
            f"are relative to {table.path.absolute().parent}"
        )
    message = f"{len(missing)} listed masks do not exist; their images cannot be used: {abbreviate(missing)}"
    note = (message,) if missing else ()
    return make_targets(table.path.parent, names, classes=None, given=given, ignore=ignore, notes=note)
