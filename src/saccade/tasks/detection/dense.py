"""Dense detectors: RetinaNet and ATSS."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .anchors import Anchors
from .boxes import clip, covered, decode, encode, overlaps, take
from .fpn import FPN
from .losses import focal, mean_where, overlap_loss, smooth_l1
from .matching import UNUSED, ignore_hidden, match_by_atss, match_by_overlap
from .objects import Detections, Head, Objects

RATIOS = (0.5, 1.0, 2.0)
HIDDEN = 0.5  # fraction of an anchor inside a crowd region from which it is ignored


def tower(width: int, depth: int, *, groups: int) -> nn.Sequential:
    """Return a stack of 3 x 3 convolutions, with group normalisation if `groups` is set."""
    layers: list[nn.Module] = []
    groups = even_groups(groups, width)
    for _ in range(depth):
        layers.append(nn.Conv2d(width, width, 3, padding=1, bias=not groups))
        layers += [nn.GroupNorm(groups, width)] if groups else []
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


def even_groups(groups: int, width: int) -> int:
    """Return the number of groups of at least four channels, so that single-cell maps have a variance."""
    return math.gcd(groups, max(width // 4, 1)) if groups else 0


def start_small(part: nn.Module) -> None:
    """Initialise a module's convolutions with small random weights."""
    for module in part.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.01)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def assume_rare(layer: nn.Module) -> None:
    """Initialise the bias of logits for a prior probability of 1%."""
    if isinstance(layer.bias, Tensor):
        nn.init.constant_(layer.bias, -math.log(0.99 / 0.01))


class DenseDetector(Head):
    """Base of heads that classify and regress every anchor.

    Args:
        width: channels of the pyramid and the head.
        depth: convolutions before each output.
        more: see `FPN`.
        groups: groups of group normalisation, 0 for none; default: the head's own.
        anchor: side of the smallest anchor in cells; likewise.

    Attributes:
        octave: number of anchor sizes in an octave.
        ratios: anchors' ratios of height to width.
    """

    codes = (1.0, 1.0)
    kept, candidates = 300, 1000
    octave: ClassVar[int] = 1
    ratios: ClassVar[tuple[float, ...]] = (1.0,)
    own_groups: ClassVar[int] = 0
    own_anchor: ClassVar[float] = 4.0

    def __init__(
        self,
        *,
        channels: Sequence[int],
        num_classes: int,
        width: int = 256,
        depth: int = 4,
        more: str = "coarsest",
        groups: int | None = None,
        anchor: float | None = None,
    ) -> None:
        super().__init__()
        groups, anchor = self.own_groups if groups is None else groups, self.own_anchor if anchor is None else anchor
        self.num_classes, self.per_cell = num_classes, self.octave * len(self.ratios)
        self.grid = Anchors([anchor * 2 ** (part / self.octave) for part in range(self.octave)], self.ratios)
        self.fpn = FPN(channels[-3:], width, more=more)
        self.class_tower, self.box_tower = tower(width, depth, groups=groups), tower(width, depth, groups=groups)
        self.classes = nn.Conv2d(width, self.per_cell * num_classes, 3, padding=1)
        self.boxes = nn.Conv2d(width, self.per_cell * 4, 3, padding=1)
        for part in (self.class_tower, self.box_tower, self.classes, self.boxes):
            start_small(part)
        assume_rare(self.classes)
        self.add_parts(width)

    def add_parts(self, width: int) -> None:
        """Add further parts of a head."""

    def forward(self, maps: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return raw outputs of all anchors: "logits" B, A, K, "codes" B, A, 4, and those of subclasses."""
        return self._answer(self.fpn(maps[-3:]))

    def _answer(self, maps: Sequence[Tensor]) -> dict[str, Tensor]:
        logits = [self._rows(self.classes(self.class_tower(one)), self.num_classes) for one in maps]
        codes = [self._rows(self.boxes(self.box_tower(one)), 4) for one in maps]
        return {"logits": torch.cat(logits, 1), "codes": torch.cat(codes, 1)}

    def _rows(self, answers: Tensor, size: int) -> Tensor:
        batch, _, height, width = answers.shape
        answers = answers.view(batch, self.per_cell, size, height, width).permute(0, 3, 4, 1, 2)
        return answers.reshape(batch, -1, size)

    def anchors(self, size: tuple[int, int], maps: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
        """Return the anchors of all levels, A, 4, and their number by level."""
        found = self.grid(pyramid_shapes(maps[-3:], self.fpn.levels), size, maps[0].device)
        return torch.cat(found), [len(one) for one in found]

    def losses(
        self, maps: Sequence[Tensor], objects: Objects, size: tuple[int, int], seeds: Tensor
    ) -> dict[str, Tensor]:
        """Return the losses by name."""
        raw = {name: value.float() for name, value in self(maps).items()}
        return self.loss(raw, objects, *self.anchors(size, maps))

    def loss(
        self, raw: dict[str, Tensor], objects: Objects, anchors: Tensor, counts: Sequence[int]
    ) -> dict[str, Tensor]:
        """Return the losses of raw outputs by name."""
        raise NotImplementedError

    def answers(self, maps: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
        """Return each level's top candidates, B, M, 6: box, score and class; before suppression."""
        raw = {name: value.float() for name, value in self(maps).items()}
        anchors, counts = self.anchors(size, maps)
        value, place, label = best_of_levels(self.scores(raw), counts, self.candidates)
        boxes = clip(decode(take(raw["codes"], place), anchors[place], self.codes), size)
        return Detections(boxes, value, label).rows()

    def scores(self, raw: dict[str, Tensor]) -> Tensor:
        """Return the scores of anchors and classes, B, A, K."""
        return raw["logits"].sigmoid()


class RetinaNet(DenseDetector):
    """Focal loss over anchors of three sizes and three ratios (Lin et al., 2017)."""

    octave, ratios = 3, RATIOS

    def halve_anchors(self, times: int) -> None:
        """Halve the anchors `times` times."""
        self.grid.halve(times)

    def loss(
        self, raw: dict[str, Tensor], objects: Objects, anchors: Tensor, counts: Sequence[int]
    ) -> dict[str, Tensor]:
        """Return the losses of classes and boxes, normalised by each image's matched anchors and averaged."""
        shared = overlaps(objects.boxes, anchors.expand(len(objects.boxes), -1, -1))
        matched = match_by_overlap(shared, objects.real, high=0.5, low=0.4, every_object=True)
        matched = ignore_hidden(matched, in_crowd(anchors, objects))
        positive = matched >= 0
        target, box = class_targets(objects, matched, self.num_classes)
        over = positive.sum(1).clamp(min=1)
        classes = torch.where((matched != UNUSED)[..., None], focal(raw["logits"], target), 0).sum((1, 2))
        codes = smooth_l1(raw["codes"], encode(box, anchors.expand_as(box), self.codes), beta=0.0)
        boxes = torch.where(positive[..., None], codes, 0).sum((1, 2))
        return {"classes": (classes / over).mean(), "boxes": (boxes / over).mean()}


class ATSS(DenseDetector):
    """One anchor a cell, adaptive training sample selection, GIoU loss and centredness (Zhang et al., 2020)."""

    codes = (10.0, 5.0)
    overlap, kept = 0.6, 100
    own_groups, own_anchor = 32, 8.0

    def add_parts(self, width: int) -> None:
        """Add the centredness branch, and a scale for each level's boxes."""
        self.centredness = nn.Conv2d(width, 1, 3, padding=1)
        self.scales = nn.Parameter(torch.ones(self.fpn.levels))
        start_small(self.centredness)

    def _answer(self, maps: Sequence[Tensor]) -> dict[str, Tensor]:
        logits, codes, centred = [], [], []
        for number, one in enumerate(maps):
            features = self.box_tower(one)
            logits.append(self._rows(self.classes(self.class_tower(one)), self.num_classes))
            codes.append(self._rows(self.boxes(features), 4) * self.scales[number])
            centred.append(self._rows(self.centredness(features), 1)[..., 0])
        return {"logits": torch.cat(logits, 1), "codes": torch.cat(codes, 1), "centred": torch.cat(centred, 1)}

    def scores(self, raw: dict[str, Tensor]) -> Tensor:
        """Return the scores, B, A, K, multiplied by centredness."""
        return raw["logits"].sigmoid() * raw["centred"].sigmoid()[..., None]

    def loss(
        self, raw: dict[str, Tensor], objects: Objects, anchors: Tensor, counts: Sequence[int]
    ) -> dict[str, Tensor]:
        """Return the losses of classes, boxes and centredness, normalised by the batch's matched anchors."""
        matched = match_by_atss(objects.boxes, objects.real, anchors, counts)
        matched = ignore_hidden(matched, in_crowd(anchors, objects))
        positive = matched >= 0
        target, box = class_targets(objects, matched, self.num_classes)
        centred = torch.where(positive, centredness(anchors.expand_as(box), box), 0)
        found = decode(raw["codes"], anchors, self.codes)
        near = F.binary_cross_entropy_with_logits(raw["centred"], centred, reduction="none")
        return {
            "classes": mean_where(focal(raw["logits"], target), matched != UNUSED, over=positive.sum()),
            "boxes": 2 * mean_where(overlap_loss(found, box) * centred, positive, over=centred.sum()),
            "centredness": mean_where(near, positive),
        }


def pyramid_shapes(maps: Sequence[Tensor], levels: int) -> list[tuple[int, int]]:
    """Return height and width of a pyramid's maps: the given ones, and coarser ones of half the side."""
    found = [(one.shape[-2], one.shape[-1]) for one in maps]
    while len(found) < levels:
        found.append(((found[-1][0] + 1) // 2, (found[-1][1] + 1) // 2))
    return found


def best_of_levels(scores: Tensor, counts: Sequence[int], candidates: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return score, index and class of each level's top candidates, B, M each."""
    classes, start = scores.shape[-1], 0
    picked = []
    for count in counts:
        level = scores[:, start : start + count].flatten(1)
        value, place = level.topk(min(candidates, level.shape[1]), dim=1)
        picked.append((value, place // classes + start, place % classes))
        start += count
    value, place, label = (torch.cat(parts, dim=1) for parts in zip(*picked, strict=True))
    return value, place, label


def centredness(anchors: Tensor, boxes: Tensor) -> Tensor:
    """Return the centredness of anchors in boxes, ..., N: 1 at the centre, 0 at the border and outside."""
    middle = (anchors[..., :2] + anchors[..., 2:]) / 2
    before, after = middle - boxes[..., :2], boxes[..., 2:] - middle
    nearer, farther = torch.minimum(before, after).clamp(min=0), torch.maximum(before, after).clamp(min=1e-6)
    return (nearer / farther).prod(-1).sqrt()


def in_crowd(boxes: Tensor, objects: Objects) -> Tensor:
    """Return which boxes, N, 4 or B, N, 4, are mostly inside crowd regions, B, N."""
    boxes = boxes.expand(len(objects.boxes), -1, -1)
    if objects.boxes.shape[1] == 0:
        return torch.zeros(boxes.shape[:2], dtype=torch.bool, device=boxes.device)
    part = covered(boxes, objects.boxes)
    return ((part > HIDDEN) & (objects.crowd & (objects.labels >= 0))[:, None]).any(-1)


def of_matched(objects: Objects, matched: Tensor) -> tuple[Tensor, Tensor]:
    """Return class and box of each anchor's match, B, A and B, A, 4; arbitrary without a match."""
    if objects.boxes.shape[1] == 0:
        return torch.full_like(matched, -1), objects.boxes.new_zeros(*matched.shape, 4)
    place = matched.clamp(min=0)
    return take(objects.labels, place), take(objects.boxes, place)


def class_targets(objects: Objects, matched: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return one-hot class targets, B, A, K, zero without a match, and the matched boxes."""
    label, box = of_matched(objects, matched)
    return F.one_hot(label.clamp(min=0), num_classes).float() * (matched >= 0)[..., None], box
