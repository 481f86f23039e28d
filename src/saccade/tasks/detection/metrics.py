"""Metrics of detection: average precision, from records of single images.

The record of an image holds which predictions match an object at ten IoU thresholds, as in COCO's protocol. Average
precision is a function of the records, so that samples can be resampled, gathered over processes and compared.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data.frame import from_runs, own_boxes
from ...data.spec import InputSpec
from ..metric import PLACE, Metrics, MetricSpec
from .boxes import areas, clip, intersections
from .masks import mask_intersections

OVERLAPS = tuple(0.5 + 0.05 * step for step in range(10))
RECALLS = np.linspace(0, 1, 101)
RANGES = ((0.0, 1e10), (0.0, 32.0**2), (32.0**2, 96.0**2), (96.0**2, 1e10))  # areas: all, small, medium, large
SIZES = ("", "small", "medium", "large")
SINGLE = 40  # most classes with separate metrics
# A row of a record: class, score, then matched and ignored predictions of each area range, as ten bits each. An object
# is a row with score -1, and 1 for each range that it counts in. Score 0 is padding.
LABEL, SCORE, FIRST = 0, 1, 2
WIDTH = FIRST + 2 * len(RANGES)
BITS = 1 << np.arange(len(OVERLAPS))


def metric_specs(outputs: Sequence[str], *, masks: bool) -> tuple[MetricSpec, ...]:
    """Return the metrics for the given classes, for boxes and optionally masks."""
    kinds: list[tuple[str, str, Callable[[np.ndarray], float]]] = [
        ("ap", "average precision", average_precision),
        ("ap50", "average precision at half overlap", partial(average_precision, overlaps=(0,))),
        ("ap75", "average precision at three quarters overlap", partial(average_precision, overlaps=(5,))),
    ]
    for size, name in enumerate(SIZES[1:], 1):
        kinds.append((f"ap_{name}", f"average precision of {name} objects", partial(average_precision, size=size)))
    kinds.append(("ar", "average recall", average_recall))
    for place, name in enumerate(outputs if len(outputs) <= SINGLE else ()):
        kinds.append(
            (f"ap_class_{place}", f"average precision of {name}", partial(average_precision, classes=(place,)))
        )
    return tuple(
        MetricSpec(f"{start}{name}", f"{said}{words}", share=True, statistic=statistic, source=f"{start}records")
        for start, words in (("mask_", " of masks"), ("", ""))[0 if masks else 1 :]
        for name, said, statistic in kinds
    )


class DetectionMetrics(Metrics):
    """Collects the matches of predictions and objects."""

    primary = "ap"

    def __init__(self, spec: InputSpec) -> None:
        super().__init__(spec)
        self.masks, self.framing, self.own_frame = bool(spec.extra.get("masks")), spec.framing, spec.own_frame

    @classmethod
    def metric_specs(cls, spec: InputSpec) -> tuple[MetricSpec, ...]:
        """Return average precision and further metrics."""
        return metric_specs(spec.outputs, masks=bool(spec.extra.get("masks")))

    @classmethod
    def primary_of(cls, spec: InputSpec) -> str:
        """Return average precision, of masks if there are any."""
        return "mask_ap" if spec.extra.get("masks") else "ap"

    def side(self, batch: Mapping[str, Tensor]) -> int:
        """Return the side of a batch's square images."""
        return batch["image"].shape[-1] if "image" in batch else self.framing.img_size

    def scales(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the size of each image in the metrics' frame relative to the original, B float64."""
        sizes = batch["size"].amax(1).double()
        return torch.ones_like(sizes) if self.own_frame else self.side(batch) / sizes

    def in_frame(
        self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]
    ) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Return answers and batch with boxes in pixels of the original images, without objects in the padding."""
        if not self.own_frame:
            return answers, batch
        moved = {name: answers[name].clone() for name in ("boxes", "scores", "labels")}
        for place, size in enumerate(batch["size"].tolist()):
            boxes = own_boxes(moved["boxes"][place].double(), size, self.framing.canvas(*size))
            outside = areas(clip(boxes, size)) <= 0
            moved["boxes"][place], moved["scores"][place][outside], moved["labels"][place][outside] = boxes, 0.0, -1
        return {**answers, **moved}, {**batch, "boxes": batch["own_boxes"]}

    def measure(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return `records`, B, R, columns, and `mask_records` if there are masks."""
        return self.records(*self.in_frame(answers, batch))

    def records(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the measurements of answers and objects in one frame."""
        with torch.autocast(batch["labels"].device.type, enabled=False):  # pixels are counted exactly
            return self._records(answers, batch)

    def _records(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, list[np.ndarray]] = {"records": [], **({"mask_records": []} if self.masks else {})}
        scales = self.scales(batch).tolist()
        for place, (height, width) in enumerate(batch["size"].tolist()):
            boxes, truth = answers["boxes"][place].double(), batch["boxes"][place].double()
            labels = batch["labels"][place]
            there = labels >= 0
            common: dict[str, Any] = {
                "labels": answers["labels"][place].cpu().numpy(),
                "scores": answers["scores"][place].double().cpu().numpy(),
                "truth": labels[there].cpu().numpy(),
                "crowd": batch["crowd"][place][there].cpu().numpy(),
                "rows": len(labels),
                "scale": scales[place],
                "listed": batch["areas"][place][there].cpu().numpy() if self.own_frame else 0.0,
            }
            truth = truth[there]
            if self.own_frame:
                boxes = clip(boxes, (height, width))
            found["records"].append(_record(intersections(boxes, truth), areas(boxes), areas(truth), **common))
            if self.masks:
                numbers = torch.arange(1, len(labels) + 1, device=labels.device)[there]
                maps = batch["mask"][place]
                if self.own_frame:
                    values, lengths = (batch[name][place : place + 1] for name in ("mask_values", "mask_runs"))
                    maps = from_runs(values, lengths, (len(maps), height, width))[0]
                parts = {name: answers[name][place] for name in ("masks", "boxes", "labels")}
                found["mask_records"].append(_record(*mask_intersections(maps, numbers, **parts), **common))
        return {name: torch.from_numpy(np.stack(records)) for name, records in found.items()}

    def scores(self) -> dict[str, Tensor]:
        """Return the records of the metrics."""
        return {name: self.columns[name] for name in ("records", "mask_records") if name in self.columns}

    def predictions(self) -> dict[str, Tensor]:
        """Return every sample's average precision."""
        column = self.columns["mask_records" if self.masks else "records"].numpy()
        own = [average_precision(record[None]) for record in column]
        return {PLACE: self.columns[PLACE], "ap": torch.tensor(own, dtype=torch.float32)}


def _record(
    shared: Tensor,
    own: Tensor,
    theirs: Tensor,
    *,
    labels: np.ndarray,
    scores: np.ndarray,
    truth: np.ndarray,
    crowd: np.ndarray,
    rows: int,
    scale: float,
    listed: np.ndarray | float,
) -> np.ndarray:
    """Return the record of an image.

    Args:
        shared: intersections of predictions and objects in pixels, K, N.
        own: areas of the predictions, K.
        theirs: areas of the objects, N.
        labels: predicted classes, -1 for none.
        crowd: which objects are crowd regions.
        rows: number of rows for objects.
        scale: size of the framed image relative to the original.
        listed: areas of the objects by their annotations, N; 0 if they are not listed.
    """
    union = own[:, None] + theirs[None] - shared
    overlap = shared / torch.where(torch.from_numpy(crowd).to(own.device)[None], own[:, None], union).clamp(min=1e-9)
    values = overlap.cpu().numpy()
    area, object_area = own.cpu().numpy() / scale**2, theirs.cpu().numpy() / scale**2
    object_area = np.where(np.greater(listed, 0), listed, object_area)
    found = np.zeros((len(labels) + rows, WIDTH), dtype=np.float64)
    filled = labels >= 0
    found[: len(labels), LABEL] = labels
    found[: len(labels), SCORE] = np.where(filled, scores, 0.0)
    objects = slice(len(labels), len(labels) + len(truth))
    found[objects, LABEL], found[objects, SCORE] = truth, np.where(crowd, 0.0, -1.0)
    low, high = (np.array(side)[:, None] for side in zip(*RANGES, strict=True))
    outside = (object_area < low) | (object_area > high)  # ranges, N
    hit, spared = match_image(values, labels, truth, crowd=crowd, outside=outside)
    spared |= ~hit & ((area < low) | (area > high))[..., None]
    for place in range(len(RANGES)):
        found[: len(labels), FIRST + 2 * place] = hit[place] @ BITS
        found[: len(labels), FIRST + 2 * place + 1] = spared[place] @ BITS
        found[objects, FIRST + 2 * place] = ~outside[place] & ~crowd
    return found


def match_image(
    shared: np.ndarray, labels: np.ndarray, truth: np.ndarray, *, crowd: np.ndarray, outside: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return which predictions match an object and which are ignored, R, K, 10 bool each, at ten IoU thresholds.

    In order of score, each prediction takes the unmatched object of its class with the highest IoU. Without one, it may
    take an object that does not count, and is then ignored; crowds can be taken several times.

    Args:
        shared: IoU of predictions, best first, and objects, K, N.
        labels: predicted classes, K; -1 for none.
        crowd: which objects are crowds, N.
        outside: which objects do not count in each of R area ranges, R, N.
    """
    cases = len(outside)
    hit = np.zeros((cases, len(labels), len(OVERLAPS)), bool)
    spared, taken = np.zeros_like(hit), np.zeros((cases, len(OVERLAPS), len(truth)), bool)
    least = np.minimum(OVERLAPS, 1 - 1e-10)[:, None]
    ignored = crowd | outside
    close = (labels[:, None] == truth[None]) & (labels[:, None] >= 0) & (shared >= least[0])
    for place in np.flatnonzero(close.any(1)):
        near = np.flatnonzero(close[place])
        enough, left_out, used = shared[place, near] >= least, ignored[:, None, near], taken[..., near]
        free = enough & ~left_out & ~used
        found = free.any(-1)
        other = enough & left_out & (crowd[near] | ~used) & ~found[..., None]
        hit[:, place], spared[:, place] = found, other.any(-1)
        # The last of equal ones is taken, as in COCO's code.
        best = np.where(free | other, shared[place, near], -1.0)[..., ::-1].argmax(-1)
        case, step = np.nonzero(found | spared[:, place])
        taken[case, step, near[len(near) - 1 - best[case, step]]] = True
    return hit, spared


def average_precision(
    records: np.ndarray,
    *,
    overlaps: Sequence[int] = range(len(OVERLAPS)),
    classes: Sequence[int] | None = None,
    size: int = 0,
) -> float:
    """Return average precision: the mean of precision at 101 recalls over present classes and IoU thresholds.

    Args:
        records: records of images, N, R, columns.
        overlaps: which of the ten IoU thresholds.
        classes: which classes; default: all.
        size: which area range.
    """
    curves = class_curves(records, overlaps=overlaps, classes=classes, size=size)
    return float(np.mean([curve.mean() for curve in curves.values()])) if curves else 0.0


def class_curves(
    records: np.ndarray, *, overlaps: Sequence[int], classes: Sequence[int] | None = None, size: int = 0
) -> dict[int, np.ndarray]:
    """Return the precision at 101 recalls of every class with objects, overlaps, 101."""
    found = {}
    for label, hits, spared, total in _by_class(records, classes, size):
        curves = []
        for step in overlaps:
            counted = np.cumsum(spared >> step & 1 == 0)[np.flatnonzero((hits & ~spared) >> step & 1)]
            right = np.arange(1, len(counted) + 1)  # recall only increases at matches
            precision = np.maximum.accumulate((right / counted)[::-1])[::-1]
            curves.append(np.append(precision, 0.0)[np.searchsorted(right / total, RECALLS, side="left")])
        found[label] = np.stack(curves)
    return found


def average_recall(records: np.ndarray, *, size: int = 0) -> float:
    """Return average recall: the mean over classes and IoU thresholds."""
    found = []
    for _, hits, spared, total in _by_class(records, None, size):
        ends = [((hits & ~spared) >> step & 1).sum() / total for step in range(len(OVERLAPS))]
        found.append(np.mean(ends))
    return float(np.mean(found)) if found else 0.0


def _by_class(
    records: np.ndarray, classes: Sequence[int] | None, size: int
) -> list[tuple[int, np.ndarray, np.ndarray, int]]:
    """Return for each class with objects: matched and ignored predictions as bits, best first, and the object count."""
    rows = records.reshape(-1, records.shape[-1])
    label, score, hits, spared = (rows[:, column] for column in (LABEL, SCORE, FIRST + 2 * size, FIRST + 2 * size + 1))
    totals = np.bincount(label[(score < 0) & (hits > 0)].astype(np.int64))
    said = np.flatnonzero(score > 0)
    said = said[np.lexsort((-score[said], label[said]))]
    begins = np.searchsorted(label[said], np.arange(len(totals) + 1))
    found = []
    for place in np.flatnonzero(totals).tolist():
        if classes is None or place in classes:
            own = said[begins[place] : begins[place + 1]]
            found.append((place, hits[own].astype(np.int64), spared[own].astype(np.int64), int(totals[place])))
    return found
