"""What is wrong with answers, by kind, and what a page shows of them: kept beside the records of average precision."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ..page import choose_shown
from .boxes import areas, covered, overlaps
from .metrics import DetectionMetrics

NONE, RIGHT, DOUBLED, OTHER_CLASS, MISPLACED, NOTHING, SPARED = range(7)  # what an answer is
KINDS = {
    MISPLACED: ("Badly placed", "of its class, but with an overlap of 10% to 50%"),
    OTHER_CLASS: ("Wrong class", "in the place of an object of another class"),
    DOUBLED: ("Doubled", "in the place of an object that a surer answer has found"),
    NOTHING: ("Nothing there", "where no object is"),
}
ENOUGH, NEAR = 0.5, 0.1  # overlap of a right answer, and of one that is badly placed
SHOWN_MASKS = 20  # answers of an image whose masks a page shows
KIND = 6  # column of an answer that a page keeps, after box, score and class
FOUND, AREA = 1, 2  # columns of an object, after its class: score it was found with, 0 for never; area in pixels


class ShownMetrics(DetectionMetrics):
    """Collects what errors there are and what a page shows, beside what metrics are made of."""

    def measure(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the records, `answers` (B, K, 7), `objects` (B, N, 3) and the surest answers' `masks`."""
        found = super().measure(answers, batch)
        kinds, scores = [], []
        for place in range(len(batch["labels"])):
            kind, score = tell_errors(
                *(answers[name][place].cpu() for name in ("boxes", "scores", "labels")),
                *(batch[name][place].cpu() for name in ("boxes", "labels", "crowd")),
            )
            kinds.append(kind)
            scores.append(score)
        parts = [answers["boxes"], answers["scores"][..., None], answers["labels"][..., None]]
        found["answers"] = torch.cat([*(one.float().cpu() for one in parts), torch.stack(kinds)[..., None].float()], -1)
        labels = torch.where(batch["crowd"].bool(), -1, batch["labels"]).float().cpu()
        scale = self.side(batch) / batch["size"].amax(1).float()
        area = (areas(batch["boxes"].float()) / scale[:, None] ** 2).cpu()
        found["objects"] = torch.stack([labels, torch.stack(scores), area], -1)
        found["side"] = torch.full((len(area),), self.side(batch))
        if "masks" in answers:
            found["masks"] = (255 * answers["masks"][:, :SHOWN_MASKS]).to(torch.uint8).cpu()
        return found

    def predictions(self) -> dict[str, Tensor]:
        """Return every sample's own average precision, its answers and objects, and masks of those that are shown."""
        kept = super().predictions()
        objects, answers = self.columns["objects"], self.columns["answers"]
        empty = (objects[..., 0] < 0).all(1)
        sure = (answers[..., 4] >= ENOUGH).any(1)
        kept["ap"] = torch.where(empty, (~sure).float(), kept["ap"])  # nothing is found where nothing is: all is right
        kept["side"] = self.columns["side"][:1]
        kept |= {"answers": answers, "objects": objects, "shown": torch.from_numpy(choose_shown(kept["ap"].numpy()))}
        return kept | ({"masks": self.columns["masks"][kept["shown"]]} if "masks" in self.columns else {})


def tell_errors(
    boxes: Tensor, scores: Tensor, labels: Tensor, truth: Tensor, classes: Tensor, crowd: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what each answer is, K, and the score of the answer that found each object, N.

    Surer answers choose first, so that what is said of answers above a score does not depend on those below it.

    Args:
        boxes: of the answers, surest first, K, 4.
        scores: of the answers, K.
        labels: of the answers, K; -1 for none.
        truth: boxes of the objects, N, 4.
        classes: of the objects, N; -1 for none.
        crowd: which objects are regions that nothing is said of, N.
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
    """Return the score from which answers, N, K, 7, have the highest F1; one half where nothing is right."""
    flat = answers.reshape(-1, answers.shape[-1])
    flat = flat[(flat[:, KIND] != NONE) & (flat[:, KIND] != SPARED)]
    flat = flat[np.argsort(-flat[:, 4], kind="stable")]
    right = np.cumsum(flat[:, KIND] == RIGHT)
    if not len(right) or not right[-1]:
        return 0.5
    total = int((objects[..., 0] >= 0).sum())
    return float(flat[int(np.argmax(2 * right / (np.arange(1, len(right) + 1) + total))), 4])


def count_errors(answers: np.ndarray, objects: np.ndarray, least: float) -> dict[int, int]:
    """Return how many answers of at least a score are of each kind; `NONE` counts objects that are missed."""
    said = answers[..., 4] >= least
    found = {kind: int((said & (answers[..., KIND] == kind)).sum()) for kind in (RIGHT, *KINDS)}
    return found | {NONE: int(((objects[..., 0] >= 0) & (objects[..., FOUND] < least)).sum())}
