"""Detection errors by type, and predictions for pages."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ..page import choose_shown
from .boxes import areas, covered, overlaps
from .metrics import DetectionMetrics

NONE, RIGHT, DOUBLED, OTHER_CLASS, MISPLACED, NOTHING, SPARED = range(7)  # types of predictions
KINDS = {
    MISPLACED: ("Wrong location", "the right class, but an overlap of only 10% to 50%"),
    OTHER_CLASS: ("Wrong class", "on an object of another class"),
    DOUBLED: ("Duplicate", "on an object that a prediction with a higher score has already found"),
    NOTHING: ("Background", "not on any object"),
}
ENOUGH, NEAR = 0.5, 0.1  # IoU of a correct prediction, and of a badly located one
KIND = 6  # column of the type, after box, score and class
FOUND, AREA = 1, 2  # columns of an object, after its class: score of its match, 0 if missed; area in pixels


class ShownMetrics(DetectionMetrics):
    """Collects errors and predictions for pages, besides the metrics' records."""

    def measure(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the records, `answers` (B, K, 7) and `objects` (B, N, 3)."""
        answers, batch = self.in_frame(answers, batch)
        found = self.records(answers, batch)
        kinds, scores = [], []
        for place in range(len(batch["labels"])):
            kind, score = classify_errors(
                *(answers[name][place].cpu() for name in ("boxes", "scores", "labels")),
                *(batch[name][place].cpu() for name in ("boxes", "labels", "crowd")),
            )
            kinds.append(kind)
            scores.append(score)
        parts = [answers["boxes"], answers["scores"][..., None], answers["labels"][..., None]]
        found["answers"] = torch.cat([*(one.float().cpu() for one in parts), torch.stack(kinds)[..., None].float()], -1)
        labels = torch.where(batch["crowd"].bool(), -1, batch["labels"]).float().cpu()
        area = areas(batch["boxes"].float()) / self.scales(batch)[:, None] ** 2
        if self.own_frame:
            area = torch.where(batch["areas"] > 0, batch["areas"], area)
        found["objects"] = torch.stack([labels, torch.stack(scores), area.float().cpu()], -1)
        return found | {"side": torch.full((len(area),), 0 if self.own_frame else self.side(batch))}

    def predictions(self) -> dict[str, Tensor]:
        """Return every sample's average precision, predictions and objects, and the samples to show."""
        kept = super().predictions()
        objects, answers = self.columns["objects"], self.columns["answers"]
        empty = (objects[..., 0] < 0).all(1)
        sure = (answers[..., 4] >= ENOUGH).any(1)
        kept["ap"] = torch.where(empty, (~sure).float(), kept["ap"])  # no objects and no predictions: perfect
        kept["side"] = self.columns["side"][:1]
        shown = torch.from_numpy(choose_shown(kept["ap"].numpy()))
        return kept | {"answers": answers, "objects": objects, "shown": shown}


def classify_errors(
    boxes: Tensor, scores: Tensor, labels: Tensor, truth: Tensor, classes: Tensor, crowd: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the type of each prediction, K, and the score of each object's match, N.

    Predictions are matched in order of score, so that the result above a score does not depend on those below it.

    Args:
        boxes: predicted boxes in order of score, K, 4.
        scores: predicted scores, K.
        labels: predicted classes, K; -1 for none.
        truth: boxes of the objects, N, 4.
        classes: classes of the objects, N; -1 for none.
        crowd: which objects are crowd regions, N.
    """
    real = (classes >= 0) & ~crowd.bool()
    overlap = torch.where(real[None], overlaps(boxes.float(), truth.float()), 0.0).numpy()
    inside = torch.where((crowd.bool() & (classes >= 0))[None], covered(boxes.float(), truth.float()), 0.0).numpy()
    same = (labels[:, None] == classes[None]).numpy()
    kinds, found = np.zeros(len(labels), np.int64), np.zeros(len(classes), np.float32)
    for place in np.flatnonzero(labels.numpy() >= 0):
        own, other = np.where(same[place], overlap[place], 0.0), np.where(same[place], 0.0, overlap[place])
        free = np.where(found > 0, 0.0, own)
        if free.max(initial=0.0) >= ENOUGH:
            kinds[place], found[int(free.argmax())] = RIGHT, float(scores[place])
        elif np.where(same[place], inside[place], 0.0).max(initial=0.0) >= ENOUGH:
            kinds[place] = SPARED
        elif own.max(initial=0.0) >= ENOUGH:
            kinds[place] = DOUBLED
        elif other.max(initial=0.0) >= ENOUGH:
            kinds[place] = OTHER_CLASS
        else:
            kinds[place] = MISPLACED if own.max(initial=0.0) >= NEAR else NOTHING
    return torch.from_numpy(kinds), torch.from_numpy(found)


def best_threshold(answers: np.ndarray, objects: np.ndarray) -> float:
    """Return the score threshold with the highest F1 of predictions, N, K, 7; 0.5 if none is correct."""
    flat = answers.reshape(-1, answers.shape[-1])
    flat = flat[(flat[:, KIND] != NONE) & (flat[:, KIND] != SPARED)]
    flat = flat[np.argsort(-flat[:, 4], kind="stable")]
    right = np.cumsum(flat[:, KIND] == RIGHT)
    if not len(right) or not right[-1]:
        return 0.5
    total = int((objects[..., 0] >= 0).sum())
    return float(flat[int(np.argmax(2 * right / (np.arange(1, len(right) + 1) + total))), 4])


def count_errors(answers: np.ndarray, objects: np.ndarray, least: float) -> dict[int, int]:
    """Return the number of predictions above a score by type; `NONE` counts missed objects."""
    predicted = answers[..., 4] >= least
    found = {kind: int((predicted & (answers[..., KIND] == kind)).sum()) for kind in (RIGHT, *KINDS)}
    return found | {NONE: int(((objects[..., 0] >= 0) & (objects[..., FOUND] < least)).sum())}
