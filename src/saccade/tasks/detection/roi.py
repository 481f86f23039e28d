"""Two-stage detectors: Mask R-CNN and Cascade Mask R-CNN."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import roi_align

from ..segmentation.pyramid import init_convs
from .boxes import best_boxes, clip, decode, encode, has_area, overlaps, take, with_area
from .dense import in_crowd, of_matched, tower
from .fpn import FPN, Packed, look_at, pack
from .losses import mean_where, smooth_l1
from .matching import UNUSED, draw_samples, ignore_hidden, match_by_overlap, random_priorities
from .objects import Detections, Head, Objects
from .rpn import RPN, Proposals

SIDE, MASK_SIDE = 7, 14  # RoIAlign output sides for boxes and masks
WEIGHTS = ((10.0, 5.0), (20.0, 10.0), (30.0, 15.0))  # weights of box codes by stage
OVERLAPS, SHARES = (0.5, 0.6, 0.7), (1.0, 0.5, 0.25)  # matching IoU and loss weight by stage


class BoxHead(nn.Module):
    """Box head: class and refined box of a proposal; class 0 is background.

    Args:
        width: channels of the maps.
        num_classes: number of classes.
        hidden: width of the two linear layers, or of one after convolutions.
        convs: number of convolutions.
        per_class: whether boxes are predicted for each class.
    """

    def __init__(
        self, width: int, num_classes: int, *, hidden: int = 1024, convs: int = 0, per_class: bool = True
    ) -> None:
        super().__init__()
        self.num_classes, self.per_class = num_classes, per_class
        last = [] if convs else [nn.Linear(hidden, hidden), nn.ReLU()]
        self.layers = nn.Sequential(
            *tower(width, convs, groups=32), nn.Flatten(), nn.Linear(width * SIDE**2, hidden), nn.ReLU(), *last
        )
        self.classes = nn.Linear(hidden, num_classes + 1)
        self.boxes = nn.Linear(hidden, 4 * (num_classes if per_class else 1))
        for module in self.layers:
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.classes.weight, std=0.01)
        nn.init.normal_(self.boxes.weight, std=0.001)
        nn.init.zeros_(self.classes.bias)
        nn.init.zeros_(self.boxes.bias)

    def forward(self, looked: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        """Return logits, B, N, K + 1, and codes, B, N, K or 1, 4, of box features, B * N, C, side, side."""
        features = self.layers(looked)
        logits = self.classes(features).float()
        return logits.view(batch, -1, self.num_classes + 1), self.boxes(features).float().view(
            batch, len(logits) // batch, -1, 4
        )

    def codes_of(self, codes: Tensor, labels: Tensor) -> Tensor:
        """Select the codes of classes, B, N, 4."""
        if not self.per_class:
            return codes[:, :, 0]
        place = labels.clamp(min=0)[..., None, None].expand(*labels.shape, 1, 4)
        return codes.gather(2, place)[:, :, 0]


class MaskHead(nn.Module):
    """Mask head: four convolutions and one upsampling, with a mask for each class.

    Args:
        width: channels of the maps.
        num_classes: number of classes.
        hidden: channels of the convolutions.
    """

    def __init__(self, width: int, num_classes: int, *, hidden: int = 256) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number in range(4):
            layers += [nn.Conv2d(hidden if number else width, hidden, 3, padding=1), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.ConvTranspose2d(hidden, hidden, 2, 2), nn.ReLU())
        self.masks = nn.Conv2d(hidden, num_classes, 1)
        self.apply(init_convs)

    def forward(self, looked: Tensor, labels: Tensor) -> Tensor:
        """Return mask logits, N, 28, 28, of the given classes, N."""
        logits = self.masks(self.layers(looked)).float()
        place = labels.clamp(min=0)[:, None, None, None].expand(-1, 1, *logits.shape[2:])
        return logits.gather(1, place)[:, 0]


class MaskRCNN(Head):
    """Mask R-CNN; without masks in the data, Faster R-CNN.

    Args:
        channels: channels of the backbone's maps, finest first.
        num_classes: number of classes.
        masks: whether objects have masks.
        width: channels of the pyramid.
        sampled: proposals per image in the loss.
        positive: largest fraction of matched ones among them.
        hidden: width of the box heads' layers.
        convs: convolutions of the box heads.
        proposals: number of proposals.
        anchor: square root of the anchors' area, in cells.
        per_class: whether boxes are predicted for each class; default: in a single stage only.
    """

    stages = 1

    def __init__(
        self,
        *,
        channels: Sequence[int],
        num_classes: int,
        masks: bool = True,
        width: int = 256,
        sampled: int = 512,
        positive: float = 0.25,
        hidden: int = 1024,
        convs: int = 0,
        proposals: int = 1000,
        anchor: float = 8.0,
        per_class: bool | None = None,
    ) -> None:
        super().__init__()
        self.num_classes, self.sampled, self.positive = num_classes, sampled, positive
        self.fpn = FPN(channels, width, more="pool")
        self.rpn = RPN(width, proposals=proposals, anchor=anchor)
        one = self.stages == 1
        per_class = one if per_class is None else per_class
        self.heads = nn.ModuleList(
            BoxHead(width, num_classes, hidden=hidden, convs=convs, per_class=per_class) for _ in range(self.stages)
        )
        self.mask_heads = nn.ModuleList(
            MaskHead(width, num_classes, hidden=width) for _ in range(self.stages if masks else 0)
        )
        # A single stage follows Mask R-CNN, several follow Cascade R-CNN with smooth L1 of beta 1.
        self.beta = 1 / 9 if one else 1.0

    def halve_anchors(self, times: int) -> None:
        """Halve the anchors of the proposals `times` times."""
        self.rpn.grid.halve(times)

    def look(self, maps: Sequence[Tensor], size: tuple[int, int]) -> tuple[list[Tensor], Packed]:
        """Return the pyramid's maps, and the packed ones for RoIAlign."""
        levels = self.fpn(maps)
        finer = levels[:-1]  # the coarsest map is only for proposals
        return levels, pack(finer, [size[0] / one.shape[-2] for one in finer])

    def losses(
        self, maps: Sequence[Tensor], objects: Objects, size: tuple[int, int], seeds: Tensor
    ) -> dict[str, Tensor]:
        """Return the losses of proposals, and of each stage's classes, boxes and masks."""
        levels, packed = self.look(maps, size)
        logits, codes = self.rpn(levels)
        anchors = self.rpn.anchors(levels, size)
        found = self.rpn.loss(logits, codes, anchors, objects, seeds)
        proposals = self.rpn.propose(logits, codes, anchors, size)
        real = objects.real
        boxes = torch.cat(
            [proposals.boxes, objects.boxes * real[..., None]], dim=1
        )  # objects are added to the proposals
        filled = torch.cat([proposals.filled, real & has_area(objects.boxes)], dim=1)
        for number, head in enumerate(self.heads):
            parts, boxes, filled = self._stage(number, head, packed, objects, Proposals(boxes, filled), size, seeds)
            end = f"_{number + 1}" if len(self.heads) > 1 else ""
            found |= {f"{name}{end}": SHARES[number] * value for name, value in parts.items()}
        return found

    def _stage(
        self,
        number: int,
        head: Any,
        packed: Packed,
        objects: Objects,
        proposals: Proposals,
        size: tuple[int, int],
        seeds: Tensor,
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return the losses of a stage, and the boxes for the next one."""
        boxes, filled = proposals
        matched = match_by_overlap(overlaps(objects.boxes, boxes), objects.real, high=OVERLAPS[number])
        matched = torch.where(filled, ignore_hidden(matched, in_crowd(boxes, objects)), UNUSED)
        place, used = draw_samples(
            matched, random_priorities(seeds + number + 1, matched.shape[1]), count=self.sampled, positive=self.positive
        )
        boxes, matched = take(boxes, place), take(matched, place)
        positive = used & (matched >= 0)
        label, wanted = of_matched(objects, matched)
        logits, codes = head(look_at(packed, boxes, SIDE), len(boxes))
        target = torch.where(positive, label + 1, 0)
        kinds = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(target)
        own = head.codes_of(codes, label)
        safe = with_area(boxes)
        where = smooth_l1(own, encode(wanted, safe, WEIGHTS[number]), beta=self.beta)
        parts = {"classes": mean_where(kinds, used), "boxes": mean_where(where, positive, over=used.sum())}
        if self.mask_heads and objects.masks is not None:
            parts["masks"] = self._mask_loss(number, packed, objects, boxes, matched, positive, size)
        if number + 1 < len(self.heads):
            with torch.no_grad():
                likely = torch.where(positive, label, logits[..., 1:].argmax(-1))  # class by which a box is refined
                moved = clip(decode(head.codes_of(codes, likely), safe, WEIGHTS[number]), size)
            boxes, used = moved, used & has_area(moved)
        return parts, boxes, used

    def _mask_loss(
        self,
        number: int,
        packed: Packed,
        objects: Objects,
        boxes: Tensor,
        matched: Tensor,
        positive: Tensor,
        size: tuple[int, int],
    ) -> Tensor:
        """Return the mask loss of matched boxes."""
        assert objects.masks is not None
        count = rows_needed(positive, min(int(self.sampled * self.positive), boxes.shape[1]))
        place = positive.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :count]
        boxes, matched, positive = take(boxes, place), take(matched, place), take(positive, place)
        label, _ = of_matched(objects, matched)
        logits = self.mask_heads[number](look_at(packed, boxes, MASK_SIDE), label.flatten())
        batch, objects_each = objects.labels.shape
        rows = matched.clamp(min=0) + torch.arange(batch, device=boxes.device)[:, None] * objects_each
        scale = objects.masks.shape[-2] / size[0]
        regions = torch.cat([rows[..., None].to(boxes.dtype), boxes], dim=-1).flatten(0, 1)
        side = logits.shape[-1]
        target = roi_align(objects.masks.flatten(0, 1)[:, None].to(boxes.dtype), regions, side, scale)[:, 0]
        loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean((1, 2))
        return mean_where(loss, positive.flatten())

    @property
    def mask_side(self) -> int:
        """Cells a side of the masks in answers; 0 without masks."""
        return 2 * MASK_SIDE if self.mask_heads else 0

    def answers(self, maps: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
        """Return objects, B, K, 6 and mask cells: box, score, class (-1 for none), mask probabilities."""
        return self.find(maps, size).rows()

    @torch.no_grad()
    def find(self, maps: Sequence[Tensor], size: tuple[int, int]) -> Detections:
        """Return the detections in images.

        Args:
            maps: the backbone's maps.
            size: height and width of the images.
        """
        levels, packed = self.look(maps, size)
        logits, codes = self.rpn(levels)
        boxes, filled = self.rpn.propose(logits, codes, self.rpn.anchors(levels, size), size)
        chances = []
        head: Any
        for number, head in enumerate(self.heads):
            said, codes = head(look_at(packed, boxes, SIDE), len(boxes))
            chances.append(said.softmax(-1))
            safe = with_area(boxes)
            moved = clip(decode(codes, safe[:, :, None], WEIGHTS[number]), size)  # B, P, K or 1, 4
            boxes = head.codes_of(moved, said[..., 1:].argmax(-1)) if number + 1 < len(self.heads) else boxes
        chance = torch.stack(chances).mean(0)[..., 1:] * filled[..., None]
        moved = moved.expand(-1, -1, self.num_classes, -1)
        label = torch.arange(self.num_classes, device=boxes.device).expand_as(chance)
        every, score, label = moved.flatten(1, 2), chance.flatten(1), label.flatten(1)
        allowed = (score > self.least) & has_area(every)
        keep, filled = best_boxes(every, score, label, allowed, overlap=self.overlap, count=self.kept)
        boxes, label = take(every, keep) * filled[..., None], torch.where(filled, take(label, keep), -1)
        masks = self._masks(packed, boxes, label, rows_needed(filled, self.kept)) if self.mask_heads else None
        return Detections(boxes, take(score, keep) * filled, label, masks)

    def _masks(self, packed: Packed, boxes: Tensor, labels: Tensor, count: int) -> Tensor:
        looked = look_at(packed, boxes[:, :count], MASK_SIDE)
        parts = [head(looked, labels[:, :count].flatten()).sigmoid() for head in self.mask_heads]
        masks = torch.stack(parts).mean(0).view(len(labels), count, *parts[0].shape[-2:])
        return F.pad(masks, (0, 0, 0, 0, 0, labels.shape[1] - count))


class Cascade(MaskRCNN):
    """Cascade R-CNN: three stages, each refining the boxes of the one before (Cai and Vasconcelos, 2018)."""

    stages = 3


def rows_needed(filled: Tensor, most: int) -> int:
    """Return the number of rows to process: on a GPU always `most`, without synchronisation.

    On a CPU static shapes have no benefit, and masks of padding rows would take most of the time and memory.

    Args:
        filled: which rows are valid, B, N.
        most: largest number of rows.
    """
    return most if filled.is_cuda else min(max(int(filled.sum(1).max()), 1), most)
