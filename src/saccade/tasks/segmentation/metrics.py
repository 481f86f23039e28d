"""Metrics of segmentation: IoU, accuracy, boundary IoU."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...data.frame import by_size, from_runs, strips
from ...data.framing import fitted
from ...data.geometry import OUTSIDE
from ...data.spec import InputSpec
from ..metric import PLACE, Metrics, MetricSpec
from ..page import choose_shown
from .testing import own_classes

SINGLE = 40  # most classes with separate metrics
CONFUSED = 64  # most classes for which confusions are stored
SMALL = 192  # longer side of masks for pages
NEAR = 0.02  # width of a border, relative to the diagonal (Cheng et al., 2021)
BEYOND = 2**15 - 1  # outside of the image, more than any class


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
        self.classes, self.own_frame = len(spec.outputs), spec.own_frame

    @classmethod
    def metric_specs(cls, spec: InputSpec) -> tuple[MetricSpec, ...]:
        """Return mean IoU and further metrics."""
        return metric_specs(spec.outputs)

    def measure(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the loss, `counts` (B, 3, K: correct, true, predicted), `borders` (B, 2, K) and the confusion.

        Pixels are those of the original images; the loss is the training's, in the model's square.
        """
        parts, places = [], []
        for some, answer, truth in self._masks(answers, batch):
            places.append(some)
            parts.append((confusions(answer, truth, self.classes), borders(answer, truth, self.classes)))
        order = torch.cat(places).argsort().to(answers["loss"].device)
        confusion, border = (torch.cat(part)[order] for part in zip(*parts, strict=True))
        counts = torch.stack([confusion.diagonal(dim1=1, dim2=2), confusion.sum(2), confusion.sum(1)], dim=1)
        found = {"loss": answers["loss"], "counts": counts, "borders": border}
        return found | ({"confusion": confusion} if self.classes <= CONFUSED else {})

    def _masks(
        self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield indices of images of one size with their predicted and true masks, B, H, W."""
        if not self.own_frame:
            yield torch.arange(len(batch["mask"])), answers["mask"], batch["mask"]
            return
        for size, places in by_size(batch["size"], device := answers["output"].device):
            here = places.to(device)
            truth = from_runs(batch["mask_values"][here], batch["mask_runs"][here], size)
            yield places, own_classes(answers["output"][here], size), truth

    def predictions(self) -> dict[str, Tensor]:
        """Return every sample's mean IoU, confusions if there are few classes, and the samples to show."""
        own = [mean_iou(counts[None]) for counts in self.columns["counts"].numpy()]
        kept = {name: self.columns[name] for name in (PLACE, "loss", "counts", "confusion") if name in self.columns}
        kept["miou"] = torch.tensor(own, dtype=torch.float32)
        return kept | {"shown": torch.from_numpy(choose_shown(np.array(own)))}


def small_masks(masks: Tensor) -> Tensor:
    """Subsample classes, B, H, W, to at most SMALL a side."""
    step = -(-max(masks.shape[-2:]) // SMALL)
    return masks[:, ::step, ::step].to(torch.int16)


def small_squares(masks: Tensor, sizes: Tensor) -> Tensor:
    """Return classes of letterboxed images of any shape, B, H, W, letterboxed into squares of side SMALL.

    Args:
        sizes: height and width of the original images, B, 2.
    """
    found = masks.new_zeros(len(masks), SMALL, SMALL, dtype=torch.int16)
    for place, (height, width) in enumerate(sizes.tolist()):
        left, top, wide, high = fitted(height, width, (masks.shape[1], masks.shape[2]))
        x, y, across, down = fitted(height, width, (SMALL, SMALL))
        rows, columns = (
            begin + torch.arange(count, device=masks.device) * given // count
            for begin, given, count in ((top, high, down), (left, wide, across))
        )
        found[place, y : y + down, x : x + across] = masks[place][rows[:, None], columns].to(torch.int16)
    return found


def confusions(answer: Tensor, truth: Tensor, classes: int) -> Tensor:
    """Return the confusion matrices of pixels, B, true class, predicted class, int32."""
    batch, cells = len(answer), classes**2
    total = torch.zeros(batch * cells + 1, dtype=torch.int64, device=truth.device)
    sample = torch.arange(batch, device=truth.device)[:, None, None]
    for part in strips(truth.shape[1], truth[:, 0].numel(), truth.device):
        true = truth[:, part]
        code = (sample * classes + true) * classes + answer[:, part]
        total += torch.where(true == OUTSIDE, batch * cells, code).flatten().bincount(minlength=len(total))
    return total[:-1].view(batch, classes, classes).int()


def borders(answer: Tensor, truth: Tensor, classes: int) -> Tensor:
    """Return intersection and union of the borders of each class in pixels, B, 2, K int32.

    A border is the part of a class within 2% of the diagonal from its boundary, including the image's edge.
    """
    batch, height, width = truth.shape
    reach = max(round(NEAR * float(np.hypot(height, width))), 1)
    sample, bins = torch.arange(batch, device=truth.device)[:, None, None], batch * classes

    def count(mask: Tensor, chosen: Tensor) -> Tensor:
        code = torch.where(chosen, sample * classes + mask, bins)
        return code.flatten().bincount(minlength=bins + 1)[:-1].view(batch, classes)

    found = torch.zeros(batch, 2, classes, dtype=torch.int64, device=truth.device)
    for part in strips(height, batch * width, truth.device):
        near = slice(max(part.start - reach, 0), min(part.stop + reach, height))
        real = truth[:, near]
        predicted = torch.where(
            real == OUTSIDE, OUTSIDE, answer[:, near]
        )  # pixels that are not counted are in no class
        edges = (reach - (part.start - near.start), reach - (near.stop - part.stop))
        (predicted, first), (real, second) = (_border(mask, reach, edges) for mask in (predicted, real))
        both = count(real, first & second & (predicted == real))
        found += torch.stack([both, count(predicted, first) + count(real, second) - both], dim=1)
    return found.int()


def _border(mask: Tensor, reach: int, edges: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return rows of a mask, and their pixels of a class from which one of none or of another is within reach.

    Args:
        reach: of the square around a pixel.
        edges: rows that are missing for it above and below, outside of the image.
    """
    mask, pads = mask.to(torch.int16), (reach, reach, *edges)
    high, low = (_highest(F.pad(sign * mask, pads, value=BEYOND), 2 * reach + 1) for sign in (1, -1))
    mask = mask.narrow(1, reach - edges[0], high.shape[1])
    return mask, (mask != OUTSIDE) & ((high != mask) | (-low != mask))


def _highest(values: Tensor, width: int) -> Tensor:
    """Return the maximum of each square window, B, H, W; in steps of doubled width, so that large ones cost little."""
    for axis in (-1, -2):
        seen = 1
        while seen < width:
            step = min(seen, width - seen)
            rest = values.shape[axis] - step
            values = torch.maximum(values.narrow(axis, 0, rest), values.narrow(axis, step, rest))
            seen += step
    return values


def _ious(counts: np.ndarray) -> np.ndarray:
    """Return the IoU of each class over samples, counts N, 3, K; NaN for absent classes."""
    right, true, predicted = counts.astype(np.int64).sum(0).astype(np.float64)
    union = true + predicted - right
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
