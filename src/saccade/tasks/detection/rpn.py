"""Region proposal network."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .anchors import Anchors
from .boxes import best_boxes, clip, decode, encode, has_area, overlaps, take
from .dense import RATIOS, in_crowd, of_matched, start_small
from .keep_triton import can_replay, keep_of_levels
from .losses import mean_where, smooth_l1
from .matching import draw_samples, ignore_hidden, match_by_overlap, random_priorities
from .objects import Objects


class Proposals(NamedTuple):
    """Proposals, best first: boxes, B, P, 4, and which are valid, B, P."""

    boxes: Tensor
    filled: Tensor


class RPN(nn.Module):
    """Region proposal network with three anchors a cell (Ren et al., 2015).

    Args:
        proposals: number of proposals.
        anchor: square root of the anchors' area, in cells.

    Attributes:
        overlap: IoU threshold of non-maximum suppression.
        sampled: anchors per image in the loss.
        positive: largest fraction of matched ones among them.
        candidates: candidates of each level, in training and inference.
    """

    overlap, sampled, positive, candidates = 0.7, 256, 0.5, (2000, 1000)

    def __init__(self, width: int, *, proposals: int, anchor: float) -> None:
        super().__init__()
        self.grid = Anchors([anchor], RATIOS)
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.objects = nn.Conv2d(width, len(RATIOS), 1)
        self.boxes = nn.Conv2d(width, len(RATIOS) * 4, 1)
        self.proposals = proposals
        for module in (self.conv, self.objects, self.boxes):
            start_small(module)

    def forward(self, maps: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return logits, B, A, and codes, B, A, 4, of each map's anchors."""
        logits, codes = [], []
        for one in maps:
            features = F.relu(self.conv(one))
            logits.append(self.objects(features).permute(0, 2, 3, 1).flatten(1).float())
            codes.append(self.boxes(features).permute(0, 2, 3, 1).reshape(len(one), -1, 4).float())
        return logits, codes

    def anchors(self, maps: Sequence[Tensor], size: tuple[int, int]) -> list[Tensor]:
        """Return each map's anchors, A, 4."""
        return self.grid([(one.shape[-2], one.shape[-1]) for one in maps], size, maps[0].device)

    @torch.no_grad()
    def propose(
        self, logits: Sequence[Tensor], codes: Sequence[Tensor], anchors: Sequence[Tensor], size: tuple[int, int]
    ) -> Proposals:
        """Return the proposals of all levels."""
        candidates = self.candidates[0 if self.training else 1]
        values, boxes, levels = [], [], []
        for number, (logit, code, anchor) in enumerate(zip(logits, codes, anchors, strict=True)):
            value, place = logit.topk(min(candidates, logit.shape[1]), dim=1)
            values.append(value)
            boxes.append(clip(decode(take(code, place), anchor[place]), size))
            levels.append(torch.full_like(place, number))
        box, count = torch.cat(boxes, 1), self.proposals
        if self.training and all(can_replay(one) for one in boxes):  # without synchronisation
            rank = torch.where(keep_of_levels(boxes, overlap=self.overlap), torch.cat(values, 1), -torch.inf)
            value, keep = rank.topk(min(count, rank.shape[1]), dim=1)
            filled = value > -torch.inf
        else:
            score, level = torch.cat(values, 1).sigmoid(), torch.cat(levels, 1)
            keep, filled = best_boxes(box, score, level, has_area(box), overlap=self.overlap, count=count)
        return Proposals(take(box, keep) * filled[..., None], filled)

    def loss(
        self,
        logits: Sequence[Tensor],
        codes: Sequence[Tensor],
        anchors: Sequence[Tensor],
        objects: Objects,
        seeds: Tensor,
    ) -> dict[str, Tensor]:
        """Return the losses of objectness and boxes over sampled anchors."""
        logit, code, anchor = torch.cat(list(logits), 1), torch.cat(list(codes), 1), torch.cat(list(anchors))
        shared = overlaps(objects.boxes, anchor.expand(len(objects.boxes), -1, -1))
        matched = match_by_overlap(shared, objects.real, high=0.7, low=0.3, every_object=True)
        matched = ignore_hidden(matched, in_crowd(anchor, objects))
        place, used = draw_samples(
            matched, random_priorities(seeds, matched.shape[1]), count=self.sampled, positive=self.positive
        )
        chosen = take(matched, place)
        positive = used & (chosen >= 0)
        own = anchor[place]
        wanted = encode(of_matched(objects, chosen)[1], own)
        something = F.binary_cross_entropy_with_logits(take(logit, place), positive.to(logit.dtype), reduction="none")
        where = smooth_l1(take(code, place), wanted, beta=1 / 9)
        return {
            "rpn_objects": mean_where(something, used),
            "rpn_boxes": mean_where(where, positive, over=used.sum()),
        }
