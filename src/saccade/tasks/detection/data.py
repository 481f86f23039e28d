"""Targets of detection: boxes, classes and optionally masks."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ...data.frame import pad_runs, to_runs
from ...data.framing import Encoded, ImageEncoder
from ...data.image import BadSample
from ...data.sides import to_one_shape
from ...data.source import Names, Sample
from ...data.split import abbreviate
from ...data.targets import Targets, renumber
from ...support.files import write_text
from ...support.wording import count_of
from .boxes import seen_boxes
from .regions import paint_objects, to_mask

MIN_ROWS = 8  # least rows of objects in a sample


@dataclass(frozen=True)
class BoxTargets(Targets):
    """Objects of images: rows are image indices, N int64; outputs are class names.

    Objects of image i are those from `starts[i]` to `starts[i + 1]`.

    Args:
        starts: first object of each image, and the end, M + 1 int64.
        boxes: corners in pixels of the image, K, 4 float32.
        labels: classes, K int64.
        crowd: crowd regions without single objects, K bool.
        areas: areas in pixels by the annotations, K float64; 0 if not listed. COCO's small, medium and large objects
            are of these areas, not of their boxes'.
        regions: masks in COCO's format (polygons or RLE); None without masks.
        names: names of the images, for messages.
        sizes: heights and widths of the images by their annotations, M, 2 int64; 0 if missing.
        remarks: problems of omitted objects and unusable masks, by image.
        layers: number of layers for overlapping masks.
    """

    task = "detect"
    noun = "classes"
    counted = "objects"
    in_rows = False
    repaired = ("box", "doubled", "no objects")

    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), dtype=np.float32))
    labels: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    crowd: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    areas: np.ndarray = field(default_factory=lambda: np.zeros(0))
    regions: "Sequence[Any] | None" = None
    names: "Sequence[str] | Names" = ()
    sizes: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    remarks: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    layers: int = 1

    def require(self, where: str) -> None:
        """Refuse a dataset without objects."""
        if not self.counts().any():
            wrong = [f"{self.names[image]}: {text}" for image, texts in self.remarks.items() for text in texts]
            problems = f"; problems with {count_of(len(wrong), 'object')}: {abbreviate(wrong)}" if wrong else ""
            raise ValueError(f"{where} has no objects in any image; a detector needs objects to learn from{problems}")

    @property
    def most(self) -> int:
        """Largest number of objects in an image: the rows of every sample."""
        return max(int(np.diff(self.starts).max(initial=0)), MIN_ROWS)

    def objects(self, index: int) -> slice:
        """Return the indices of a sample's objects."""
        image = int(self.rows[index])
        return slice(int(self.starts[image]), int(self.starts[image + 1]))

    def read(self, index: int) -> dict[str, Any]:
        """Return a sample's objects, padded to the largest number in an image; padding has class -1."""
        here = self.objects(index)
        count, most = here.stop - here.start, self.most
        boxes, labels, crowd = np.zeros((most, 4), np.float32), np.full(most, -1, np.int64), np.zeros(most, bool)
        boxes[:count], labels[:count], crowd[:count] = self.boxes[here], self.labels[here], self.crowd[here]
        areas = np.zeros(most)
        areas[:count] = self.areas[here] if len(self.areas) else 0.0
        found = {"boxes": boxes, "labels": labels, "crowd": crowd, "areas": areas}
        found["listed_size"] = self._listed_size(index)
        return found if self.regions is None else found | {"regions": self.regions[here], "layers": self.layers}

    def _listed_size(self, index: int) -> tuple[int, int] | None:
        """Return height and width of a sample by its annotations; None if missing."""
        height, width = map(int, self.sizes[int(self.rows[index])]) if len(self.sizes) else (0, 0)
        return (height, width) if height and width else None

    def describe(self, index: int) -> str:
        """Return a sample's number of objects by class as text."""
        here = self.objects(index)
        counts = np.bincount(self.labels[here], minlength=len(self.outputs))
        parts = [f"{count} {name}" for name, count in zip(self.outputs, counts, strict=True) if count]
        return ", ".join(parts) or "nothing"

    def problems(self, index: int, size: tuple[int, int]) -> Iterator[BadSample]:
        """Yield problems of a sample's objects, for an image of the given height and width."""
        image, name = int(self.rows[index]), self.names[int(self.rows[index])]
        for remark in self.remarks.get(image, ()):
            yield BadSample(name, remark, "box")
        if (reason := _other_size(self._listed_size(index), size)) is not None:
            yield BadSample(name, reason, "size")
        here = self.objects(index)
        if here.start == here.stop:
            yield BadSample(name, "it has no objects; this is correct if the image is empty", "no objects")
        if (beyond := reaches_beyond(self.boxes[here], size)).any():
            shown = abbreviate([str([round(float(side), 1) for side in box]) for box in self.boxes[here][beyond]])
            yield BadSample(
                name, f"boxes extend beyond its {size[1]} x {size[0]} pixels and are clipped: {shown}", "box"
            )
        whole = np.concatenate([self.boxes[here], self.labels[here][:, None]], axis=1)
        _, first = np.unique(whole, axis=0, return_index=True)
        if len(first) < len(whole):
            again = np.setdiff1d(np.arange(len(whole)), first)
            shown = abbreviate([f"{self.outputs[int(one[4])]} {one[:4].round(1).tolist()}" for one in whole[again]])
            yield BadSample(name, f"duplicate boxes with the same class: {shown}", "doubled")
        for place, region in enumerate([] if self.regions is None else self.regions[here]):
            try:
                if region is not None and not to_mask(region, size).any():
                    yield BadSample(
                        name, f"object {place + 1}: its mask has no pixels; its filled box is used instead", "box"
                    )
            except ValueError as error:
                yield BadSample(name, f"object {place + 1}: {error}", "box")

    def small_side(self, img_size: int, longest: int | None = None) -> float | None:
        """Return the 5% quantile of object sides, in pixels of letterboxed images.

        Args:
            img_size: side of the letterboxed images; their shorter side, where there is a longest one.
            longest: most pixels of their longer side.

        Returns:
            None if annotations have no image sizes.
        """
        if not len(self.sizes):
            return None
        sizes = np.repeat(self.sizes, np.diff(self.starts), axis=0)
        known = (sizes > 0).all(1) & ~self.crowd
        if not known.any():
            return None
        sides = np.sqrt((self.boxes[:, 2:] - self.boxes[:, :2]).clip(0).prod(1))
        factors = img_size / sizes.max(1).clip(1)
        if longest is not None:
            factors = np.minimum(img_size / sizes.min(1).clip(1), longest / sizes.max(1).clip(1))
        return float(np.percentile((sides * factors)[known], 5))

    def thinnest(self) -> float | None:
        """Return the 5% quantile of the objects' shorter sides."""
        sides = (self.boxes[:, 2:] - self.boxes[:, :2]).min(1)[~self.crowd]
        return float(np.percentile(sides, 5)) if len(sides) else None

    def beyond(self) -> np.ndarray:
        """Return which objects extend beyond their images, K bool, where sizes are known."""
        if not len(self.sizes):
            return np.zeros(len(self.boxes), dtype=bool)
        sizes = np.repeat(self.sizes, np.diff(self.starts), axis=0)
        return reaches_beyond(self.boxes, sizes) & (sizes > 0).all(1)

    def write_part(
        self, folder: Path, part: str, samples: Sequence[tuple[int, str, tuple[int, int]]]
    ) -> Iterator[tuple[str, str]]:
        """Write COCO annotations of valid objects, without duplicates and unreadable masks."""
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number, (index, name, size) in enumerate(samples, 1):
            images.append({"id": number, "file_name": name, "height": size[0], "width": size[1]})
            for remark in self.remarks.get(int(self.rows[index]), ()):
                yield name, remark
            seen = set()
            for place in range(self.objects(index).start, self.objects(index).stop):
                box = self.boxes[place].clip(0, [size[1], size[0]] * 2).round(2).tolist()
                label, reason = int(self.labels[place]), None
                key = (label, *box)
                if box[2] <= box[0] or box[3] <= box[1]:
                    reason = "its box is outside the image"
                elif key in seen:
                    reason = "its box is a duplicate"
                if reason is not None:
                    yield name, f"a {self.outputs[label]} was dropped: {reason}"
                    continue
                seen.add(key)
                width, height = round(box[2] - box[0], 2), round(box[3] - box[1], 2)
                one: dict[str, Any] = {"id": len(annotations) + 1, "image_id": number, "category_id": label + 1}
                one |= {"bbox": [*box[:2], width, height], "area": width * height, "iscrowd": int(self.crowd[place])}
                region = None if self.regions is None else self.regions[place]
                try:
                    if region is not None and (mask := to_mask(region, size)).any():
                        one |= {"segmentation": region, "area": int(mask.sum())}
                except ValueError as error:
                    yield name, f"a {self.outputs[label]} is kept without its mask: {error}"
                if len(self.areas) and self.areas[place] > 0:
                    one["area"] = float(self.areas[place])  # as it was listed
                annotations.append(one)
        categories = [{"id": place, "name": name} for place, name in enumerate(self.outputs, 1)]
        whole = {"images": images, "annotations": annotations, "categories": categories}
        write_text(folder / f"{part}.json", json.dumps(whole))

    def aligned(self, outputs: tuple[str, ...]) -> Self:
        """Return targets with the indices of another list of classes, which includes all used ones."""
        if outputs == self.outputs:
            return self
        lookup = renumber(self.outputs, outputs, used=np.unique(self.labels))
        return replace(self, labels=lookup[self.labels], outputs=outputs)

    def strata(self) -> np.ndarray:
        """Return the rarest class of each image, for stratified splits; -1 for none."""
        total = self.counts()
        found = []
        for index in range(len(self)):
            own = np.unique(self.labels[self.objects(index)])
            found.append(int(own[np.argmin(total[own])]) if len(own) else -1)
        return np.array(found, dtype=np.int64)

    def counts(self) -> np.ndarray:
        """Return the number of objects of each class."""
        chosen = [self.labels[self.objects(index)][~self.crowd[self.objects(index)]] for index in range(len(self))]
        return np.bincount(np.concatenate(chosen) if chosen else [], minlength=len(self.outputs)).astype(np.int64)

    def empty(self) -> int:
        """Return the number of samples without objects."""
        return sum(self.objects(index).stop == self.objects(index).start for index in range(len(self)))

    def update(self, digest: "hashlib._Hash") -> None:
        """Update a digest with classes and objects."""
        digest.update("\0".join(self.outputs).encode())
        for index in range(len(self)):
            here = self.objects(index)
            for part in (self.boxes[here], self.labels[here], self.crowd[here]):
                digest.update(np.ascontiguousarray(part).tobytes())
            if self.regions is not None:
                digest.update(repr(list(self.regions[here])).encode())


@dataclass(frozen=True)
class ObjectEncoder(ImageEncoder):
    """Encodes boxes, and masks as maps of object numbers in layers.

    A map is 1 at the first object, 2 at the second and so on, 0 at none, and -1 outside of the image.

    Args:
        own: also give the objects in pixels of the original image: `own_boxes`, their listed `areas`, and the maps at
            its size as runs, `mask_values` and `mask_runs`.
    """

    own: bool = False

    def __call__(self, sample: Sample, word: int = 0) -> Encoded:
        """Return a sample as tensors, with boxes clipped to the image."""
        target, size = sample.target, sample.inputs["image"].shape[:2]
        if isinstance(target, Mapping):
            target = {name: value for name, value in target.items() if self.own or name != "areas"}
            if (reason := _other_size(target.pop("listed_size", None), size)) is not None:
                raise BadSample(sample.name, reason, "size")
            target["boxes"] = _cut(target["boxes"], target["labels"] >= 0, size, name=sample.name)
            if "regions" in target:
                regions, layers = target.pop("regions"), target.pop("layers", 1)
                boxes = target["boxes"][: len(regions)]
                target["mask"] = paint_objects(regions, boxes, size, name=sample.name, layers=layers)
            sample = sample._replace(target=target)
        found = super().__call__(sample, word)
        found["size"] = torch.tensor(size)
        if self.own and isinstance(target, Mapping):
            found["own_boxes"] = torch.from_numpy(target["boxes"].copy())
            if "mask" in target:
                found["mask_values"], found["mask_runs"] = to_runs(target["mask"])
        return found | ({"mask": found["mask"].to(torch.int16)} if "mask" in found else {})

    def collate(self, samples: list[Encoded]) -> dict[str, Tensor]:
        """Stack samples into a batch; runs, and images of several shapes, are padded."""
        if len({sample["image"].shape for sample in samples}) > 1:
            samples = [_without_padding(sample) for sample in samples]
        return super().collate(pad_runs(to_one_shape(samples)))


def _without_padding(sample: Encoded) -> Encoded:
    """Clip the boxes of a crop at its border, beyond which there will be padding; those of hidden objects are empty."""
    if "boxes" not in sample:
        return sample
    boxes, seen = seen_boxes(sample["boxes"], (sample["image"].shape[-2], sample["image"].shape[-1]))
    return sample | {"boxes": torch.where(seen[:, None], boxes, 0.0)}


def _other_size(listed: tuple[int, int] | None, size: tuple[int, int]) -> str | None:
    """Return the fault if an image's size differs from that of its annotations."""
    if listed is None or listed == size:
        return None
    turned = ", rotated by its EXIF orientation" if listed == size[::-1] else ""
    return (
        f"the annotations say {listed[1]} x {listed[0]} pixels but the image has {size[1]} x {size[0]}{turned}; the "
        "boxes belong to another image: correct them, or the width and height in the annotations"
    )


def _cut(boxes: np.ndarray, real: np.ndarray, size: tuple[int, int], *, name: str) -> np.ndarray:
    """Clip boxes to an image's height and width, or raise BadSample."""
    inside = boxes.clip(0, np.array([size[1], size[0]] * 2, dtype=boxes.dtype))
    outside = real & ((inside[:, 2:] - inside[:, :2]) <= 0).any(1)
    if outside.any():
        shown = abbreviate([str([round(float(side), 1) for side in box]) for box in boxes[outside]])
        reason = f"boxes are outside its {size[1]} x {size[0]} pixels: {shown}; correct them, or remove them"
        raise BadSample(name, reason, "box")
    return inside


def reaches_beyond(boxes: np.ndarray, sizes: np.ndarray | tuple[int, int]) -> np.ndarray:
    """Return which boxes, K, 4, extend more than a pixel beyond image sizes, 2 or K, 2."""
    ends = np.asarray(sizes)[..., ::-1] + 1
    return np.asarray((boxes[:, :2] < -1).any(1) | (boxes[:, 2:] > ends).any(1))
