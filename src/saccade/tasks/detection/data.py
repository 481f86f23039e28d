"""Objects that belong to images: boxes and classes, masks where there are some; read when a sample is."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...data.framing import Encoded, ImageEncoder
from ...data.image import BadSample
from ...data.source import Names, Sample
from ...data.split import abbreviate
from ...data.targets import Targets
from .regions import paint_objects, region_problem

LEAST = 8  # rows of objects that a sample is given, at least, so that a set of few has one shape


@dataclass(frozen=True)
class BoxTargets(Targets):
    """Objects a sample: rows are images, N int64; outputs the names of the classes.

    Objects of image i are those from `starts[i]` to `starts[i + 1]`.

    Args:
        starts: of all images and the end, M + 1 int64.
        boxes: corners in pixels of the image, K, 4 float32.
        labels: classes, K int64.
        crowd: regions in which nothing is said of single objects, K bool.
        regions: what of the image is an object's, as COCO writes it (polygons or runs); None without masks.
        names: of the images, for messages.
        remarks: what is wrong with objects that were left out, by image.
    """

    task = "detect"
    noun = "classes"
    counted = "objects"
    in_rows = False

    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), dtype=np.float32))
    labels: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    crowd: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    regions: "Sequence[Any] | None" = None
    names: "Sequence[str] | Names" = ()
    remarks: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def require(self, where: str) -> None:
        """Refuse a set without any object."""
        if not self.counts().any():
            raise ValueError(f"{where} has no objects in any image; a detector needs some to learn from")

    @property
    def most(self) -> int:
        """Objects of the image that has most of them: the rows of every sample."""
        return max(int(np.diff(self.starts).max(initial=0)), LEAST)

    def objects(self, index: int) -> slice:
        """Return where a sample's objects are."""
        image = int(self.rows[index])
        return slice(int(self.starts[image]), int(self.starts[image + 1]))

    def read(self, index: int) -> dict[str, Any]:
        """Return a sample's objects in as many rows as the fullest image has; -1 is the class of empty rows."""
        here = self.objects(index)
        count, most = here.stop - here.start, self.most
        boxes, labels, crowd = np.zeros((most, 4), np.float32), np.full(most, -1, np.int64), np.zeros(most, bool)
        boxes[:count], labels[:count], crowd[:count] = self.boxes[here], self.labels[here], self.crowd[here]
        found = {"boxes": boxes, "labels": labels, "crowd": crowd}
        return found if self.regions is None else found | {"regions": self.regions[here]}

    def describe(self, index: int) -> str:
        """Return how many objects of which classes a sample has."""
        here = self.objects(index)
        counts = np.bincount(self.labels[here], minlength=len(self.outputs))
        parts = [f"{count} {name}" for name, count in zip(self.outputs, counts, strict=True) if count]
        return ", ".join(parts) or "nothing"

    def problems(self, index: int, size: tuple[int, int]) -> Iterator[BadSample]:
        """Yield what is wrong with a sample's objects, in an image of some height and width."""
        image, (height, width) = int(self.rows[index]), size
        name = self.names[image]
        for remark in self.remarks.get(image, ()):
            yield BadSample(name, remark, "box")
        here = self.objects(index)
        boxes = self.boxes[here]
        beyond = (boxes[:, :2] < -1).any(1) | (boxes[:, 2:] > np.array([width, height]) + 1).any(1)
        if beyond.any():
            shown = [str([round(float(value), 1) for value in box]) for box in boxes[beyond]]
            yield BadSample(name, f"boxes reach beyond its {width} x {height} pixels: {abbreviate(shown)}", "box")
        whole = np.concatenate([boxes, self.labels[here][:, None]], axis=1)
        doubled = len(whole) - len(np.unique(whole, axis=0))
        if doubled:
            yield BadSample(name, f"{doubled} boxes are there twice with the same class", "box")
        if self.regions is not None:
            for place, region in enumerate(self.regions[here]):
                if (problem := region_problem(region, size)) is not None:
                    yield BadSample(name, f"object {place + 1}: {problem}", "box")

    def strata(self) -> np.ndarray:
        """Return the rarest class of each image, so that held-out sets have some of each; -1 for none."""
        total = self.counts()
        found = []
        for index in range(len(self)):
            own = np.unique(self.labels[self.objects(index)])
            found.append(int(own[np.argmin(total[own])]) if len(own) else -1)
        return np.array(found, dtype=np.int64)

    def counts(self) -> np.ndarray:
        """Return how many objects each class has."""
        chosen = [self.labels[self.objects(index)][~self.crowd[self.objects(index)]] for index in range(len(self))]
        return np.bincount(np.concatenate(chosen) if chosen else [], minlength=len(self.outputs)).astype(np.int64)

    def empty(self) -> int:
        """Return how many samples have no object."""
        return sum(self.objects(index).stop == self.objects(index).start for index in range(len(self)))

    def update(self, digest: "hashlib._Hash") -> None:
        """Add classes and objects to a digest."""
        digest.update("\0".join(self.outputs).encode())
        for index in range(len(self)):
            here = self.objects(index)
            for part in (self.boxes[here], self.labels[here], self.crowd[here]):
                digest.update(np.ascontiguousarray(part).tobytes())
            if self.regions is not None:
                digest.update(repr(list(self.regions[here])).encode())


@dataclass(frozen=True)
class ObjectEncoder(ImageEncoder):
    """Samples with boxes, and the objects' masks as one map of their numbers.

    The map has 1 where the first object is, 2 for the second, and so on; where objects overlap the smaller one is on
    top. -1 is where the image has nothing to say.
    """

    def __call__(self, sample: Sample, word: int = 0) -> Encoded:
        """Return a sample as tensors."""
        target = sample.target
        if isinstance(target, Mapping) and "regions" in target:
            picture = sample.inputs["image"]
            target = dict(target)
            target["mask"] = paint_objects(target.pop("regions"), picture.shape[:2], name=sample.name)
            sample = sample._replace(target=target)
        found = super().__call__(sample, word)
        height, width = sample.inputs["image"].shape[:2]
        found["size"] = torch.tensor([height, width])
        return found | ({"mask": found["mask"].to(torch.int16)} if "mask" in found else {})
