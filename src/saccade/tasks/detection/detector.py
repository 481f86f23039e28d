"""Detectors: backbone, feature pyramid and head; and the heads by name."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...settings import ConfigError
from ...settings.registry import Registry, parse_options
from ..segmentation.pyramid import FeaturePyramid, OnPyramid, pad_to
from .boxes import best_boxes, take
from .dense import ATSS, RetinaNet
from .keep_triton import has_triton
from .objects import Detections, Objects
from .reppoints import RepPointsV2
from .roi import Cascade, MaskRCNN
from .sparse import SparseRCNN

HEADS: Registry[Callable[..., nn.Module]] = Registry(
    "detector", group="saccade.detectors", home="saccade.tasks.detection"
)
register_detector = HEADS.register
MAX_OPTION = 16_384  # largest numeric option of a head
MARGIN = 1.2  # scores within this factor of the threshold are not compared
SCORE, LABEL, CELLS = 4, 5, 6  # columns of outputs, after the box
WHOLE = -2  # class of the row with an image's size

register_detector("retinanet")(RetinaNet)
register_detector("atss")(ATSS)
register_detector("reppoints_v2")(RepPointsV2)
register_detector("sparse_rcnn")(SparseRCNN)
register_detector("mask_rcnn")(MaskRCNN)
register_detector("cascade")(Cascade)


class Detector(OnPyramid):
    """A detector of backbone, feature pyramid and head, for images of any size.

    Args:
        backbone: a backbone with timm's interface.
        head: head as in `--set model.head`: "retinanet", "mask_rcnn:width=128", ...
    """

    def __init__(self, backbone: nn.Module, head: str, *, num_classes: int, masks: bool) -> None:
        super().__init__()
        own = ("channels", "num_classes", "masks")
        name, options = parse_options(head, HEADS, given_here=own)
        self.neck = FeaturePyramid(backbone, norm=True)
        known: dict[str, Any] = {"channels": tuple(self.neck.channels), "num_classes": num_classes, "masks": masks}
        make = HEADS.find(name)
        for key, value in options.items():
            least = 0 if key in ("groups", "depth", "convs", "positive") else 1
            if isinstance(value, int | float) and not isinstance(value, bool) and not least <= value <= MAX_OPTION:
                raise ConfigError(f"model.head = {head!r} was given; {key} must be from {least} to {MAX_OPTION}")
        if "masks" not in inspect.signature(make).parameters:
            known.pop("masks")
        try:
            self.head: Any = make(**known, **options)
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise ConfigError(f"model.head = {head!r} was given: {error}") from None
        self.backbone = backbone
        self.pretrained_cfg = getattr(backbone, "pretrained_cfg", None) or {}
        self.default_cfg = {"classifier": ("head",)}
        # No head has exactly one row for each class: there are anchors, or a background class.
        self.class_layers: tuple[str, ...] = ()
        self.num_classes, self.num_features = num_classes, self.neck.channels[-1]
        self.multiple = self.neck.multiple

    @property
    def no_graph(self) -> str | None:
        """Reason that it cannot be exported: ONNX has no such operators on boxes and points."""
        if isinstance(self.head, RetinaNet | ATSS):
            return None
        return (
            f"its head is {type(self.head).__name__}, and among detectors only retinanet and atss can be exported as "
            "graphs; train with --set model.head=atss, or use the run itself"
        )

    def maps(self, x: Tensor) -> tuple[list[Tensor], tuple[int, int]]:
        """Return the head's four input maps, and the padded image size."""
        padded = pad_to(x, self.multiple)
        return self.neck(self.backbone, padded), (padded.shape[-2], padded.shape[-1])

    def losses(self, x: Tensor, objects: Objects, seeds: Tensor) -> dict[str, Tensor]:
        """Return the losses by name."""
        maps, size = self.maps(x)
        return self.head.losses(maps, objects, size, seeds)

    def forward(self, x: Tensor) -> Tensor:
        """Return objects, B, M, 6 or more: box, score, class (-1 for none) and mask cells."""
        maps, size = self.maps(x)
        return self.head.answers(maps, size)

    def get_classifier(self) -> nn.Module:
        """Return the head."""
        return self.head


def needs_host_sync(head: str) -> bool:
    """Whether training steps of a head synchronise with the host, so that they cannot be captured as CUDA graphs.

    Sparse R-CNN matches on the CPU; proposals are selected there without Triton.
    """
    name = head.split(":")[0]
    return name == "sparse_rcnn" or (name in ("mask_rcnn", "cascade") and not has_triton())


def read_answers(output: Tensor, *, overlap: float, least: float, kept: int) -> Detections:
    """Filter objects by score and non-maximum suppression, best first: `kept` rows for images of any shape."""
    output = F.pad(output, (0, 0, 0, max(kept - output.shape[1], 0)))  # small images have fewer rows
    boxes, score, label = output[..., :4], output[..., SCORE], output[..., LABEL].round().long()
    keep, filled = best_boxes(boxes, score, label, (score > least) & (label >= 0), overlap=overlap, count=kept)
    masks = None
    if output.shape[-1] > CELLS:
        side = round((output.shape[-1] - CELLS) ** 0.5)
        masks = take(output[..., CELLS:], keep).unflatten(-1, (side, side))
    return Detections(
        take(boxes, keep) * filled[..., None],
        take(score, keep) * filled,
        torch.where(filled, take(label, keep), -1),
        masks,
    )


def answer_gap(first: np.ndarray, second: np.ndarray, *, least: float) -> float:
    """Return the largest difference of a row above the threshold from the nearest one of its class in the others.

    Rows are sorted by score, so rows with nearly equal scores may be swapped.

    Args:
        first: raw outputs, B, M, columns.
        least: score threshold.
    """
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return float("nan")
    pairs = [(a, b) for one, two in zip(first, second, strict=True) for a, b in ((one, two), (two, one))]
    return max((_farthest(a[a[:, SCORE] >= least * MARGIN], b) for a, b in pairs), default=0.0)


def _farthest(rows: np.ndarray, others: np.ndarray) -> float:
    worst = 0.0
    for row in rows:
        same = others[others[:, LABEL] == row[LABEL]]
        if not len(same):
            return float("inf")
        apart = np.abs(same[:, : SCORE + 1] - row[: SCORE + 1]).max(1)
        best = int(apart.argmin())
        worst = max(worst, float(apart[best]), float(np.abs(same[best, CELLS:] - row[CELLS:]).max(initial=0.0)))
    return worst
