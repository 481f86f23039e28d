"""Metrics of segmentation: IoU, accuracy, boundary IoU."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...data.geometry import OUTSIDE
from ...data.spec import InputSpec
from ..metric import PLACE, Metrics, MetricSpec
from ..page import choose_shown

SINGLE = 40  # most classes with separate metrics
CONFUSED = 64  # most classes for which confusions are stored
SMALL = 192  # longer side of masks for pages
NEAR = 0.02  # width of a border, relative to the diagonal (Cheng et al., 2021)


def metric_specs(outputs: Sequence[str]) -> tuple[MetricSpec, ...]:
    """Return the metrics for the given classes."""
    found = (
        MetricSpec("loss", "loss", larger_is_better=False),
        MetricSpec("miou", "mean IoU", share=True, statistic=mean_iou, source="counts"),
        MetricSpec("macc", "mean accuracy of classes", share=True, statistic=mean_accuracy, source="counts"),
        MetricSpec("aacc", "accuracy of pixels", share=True, statistic=pixel_accuracy, source="counts"),
        MetricSpec("biou", "boundary IoU", share=True, statistic=boundary_iou, source="borders"),
    )
    if len(outputs) > SINGLE:
        return found
    return found + tuple(
        MetricSpec(f"iou_{place}", f"IoU of {name}", share=True, statistic=partial(class_iou, place), source="counts")
        for place, name in enumerate(outputs)
    )


class SegmentationMetrics(Metrics):
    """Collects correct, true and predicted pixels of each class."""

    primary = "miou"

    def __init__(self, spec: InputSpec) -> None:
        super().__init__(spec)
        self.classes = len(spec.outputs)

    @classmethod
    def metric_specs(cls, spec: InputSpec) -> tuple[MetricSpec, ...]:
        """Return mean IoU and further metrics."""
        return metric_specs(spec.outputs)

    def measure(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the loss, `counts` (B, 3, K: correct, true, predicted), `borders` (B, 2, K) and the confusion."""
        answer, truth = answers["mask"], batch["mask"].long()
        confusion = confusions(answer, truth, self.classes)
        counts = torch.stack([confusion.diagonal(dim1=1, dim2=2), confusion.sum(2), confusion.sum(1)], dim=1)
        found = {"loss": answers["loss"], "counts": counts, "borders": borders(answer, truth, self.classes)}
        found |= {"confusion": confusion} if self.classes <= CONFUSED else {}
        return found | ({"small": answers["small"]} if "small" in answers else {})

    def predictions(self) -> dict[str, Tensor]:
        """Return every sample's mean IoU, and confusions if there are few classes."""
        own = [mean_iou(counts[None]) for counts in self.columns["counts"].numpy()]
        kept = {name: self.columns[name] for name in (PLACE, "loss", "counts", "confusion") if name in self.columns}
        kept["miou"] = torch.tensor(own, dtype=torch.float32)
        if "small" in self.columns:
            kept["shown"] = torch.from_numpy(choose_shown(np.array(own)))
            kept["small"] = self.columns["small"][kept["shown"]]
        return kept


def small_masks(masks: Tensor) -> Tensor:
    """Subsample classes, B, H, W, to at most SMALL a side."""
    step = -(-max(masks.shape[-2:]) // SMALL)
    return masks[:, ::step, ::step].to(torch.int16)


def confusions(answer: Tensor, truth: Tensor, classes: int) -> Tensor:
    """Return the confusion matrices of pixels, B, true class, predicted class, int32."""
    batch = len(answer)
    counted = truth != OUTSIDE
    sample = torch.arange(batch, device=truth.device)[:, None, None].expand_as(truth)
    code = ((sample * classes + truth.clamp(min=0)) * classes + answer)[counted]
    return torch.bincount(code, minlength=batch * classes**2).view(batch, classes, classes).int()


def borders(answer: Tensor, truth: Tensor, classes: int) -> Tensor:
    """Return intersection and union of the borders of each class in pixels, B, 2, K int32.

    A border is the part of a class within 2% of the diagonal from its boundary, including the image's edge.
    """
    height, width = truth.shape[-2:]
    reach = max(round(NEAR * float(np.hypot(height, width))), 1)
    counted = truth != OUTSIDE
    found = []
    for place in range(classes):
        mine, true = ((one == place) & counted for one in (answer, truth))
        first, second = _border(mine, reach), _border(true, reach)
        found.append(torch.stack([(first & second).sum((1, 2)), (first | second).sum((1, 2))], dim=1))
    return torch.stack(found, dim=2).int()


def _border(mask: Tensor, reach: int) -> Tensor:
    outside = F.pad((~mask).float(), (reach,) * 4, value=1.0)[:, None]
    for axis in ((2 * reach + 1, 1), (1, 2 * reach + 1)):  # separable square
        outside = F.max_pool2d(outside, axis, stride=1)
    return mask & (outside[:, 0] > 0)


def _ious(counts: np.ndarray) -> np.ndarray:
    """Return the IoU of each class over samples, counts N, 3, K; NaN for absent classes."""
    right, true, said = counts.astype(np.int64).sum(0).astype(np.float64)
    union = true + said - right
    return np.divide(right, union, out=np.full_like(union, np.nan), where=union > 0)


def mean_iou(counts: np.ndarray) -> float:
    """Return the mean IoU over present classes."""
    return _mean(_ious(counts))


def class_iou(place: int, counts: np.ndarray) -> float:
    """Return the IoU of one class; 0 if it is absent."""
    return float(np.nan_to_num(_ious(counts)[place]))


def mean_accuracy(counts: np.ndarray) -> float:
    """Return the mean pixel accuracy over true classes."""
    right, true, _ = counts.astype(np.int64).sum(0).astype(np.float64)
    return _mean(np.divide(right, true, out=np.full_like(true, np.nan), where=true > 0))


def pixel_accuracy(counts: np.ndarray) -> float:
    """Return the pixel accuracy."""
    right, true, _ = counts.astype(np.int64).sum((0, 2))
    return float(right / max(true, 1))


def boundary_iou(borders: np.ndarray) -> float:
    """Return the mean boundary IoU over classes, of N, 2, K."""
    both, either = borders.astype(np.int64).sum(0).astype(np.float64)
    return _mean(np.divide(both, either, out=np.full_like(either, np.nan), where=either > 0))


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0
