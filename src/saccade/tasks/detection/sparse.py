"""Sparse R-CNN: learned proposals refined in stages, with one-to-one matching (Sun et al., 2021)."""

from collections.abc import Sequence

import scipy  # submodules are loaded when first used
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .boxes import clip, decode, generalized_overlap, take
from .dense import assume_rare, class_targets, in_crowd
from .fpn import FPN, look_at, pack
from .losses import focal, overlap_loss
from .objects import Detections, Head, Objects

SIDE = 7
CODES = (2.0, 1.0)
CLASS, CORNERS, OVERLAP = 2.0, 5.0, 2.0  # weights of costs and losses


class DynamicConv(nn.Module):
    """Dynamic convolution: two products of box features with weights generated from the proposal's feature."""

    def __init__(self, width: int, inner: int = 64) -> None:
        super().__init__()
        self.width, self.inner = width, inner
        self.make = nn.Linear(width, 2 * width * inner)
        self.norms = nn.ModuleList([nn.LayerNorm(inner), nn.LayerNorm(width)])
        self.out, self.norm = nn.Linear(width * SIDE**2, width), nn.LayerNorm(width)

    def forward(self, features: Tensor, looked: Tensor) -> Tensor:
        """Return updated features, N, width, from box features, N, width, side, side."""
        first, second = self.make(features).split(self.width * self.inner, dim=-1)
        seen = looked.flatten(2).transpose(1, 2)  # N, cells, width
        seen = F.relu(self.norms[0](seen @ first.view(-1, self.width, self.inner)))
        seen = F.relu(self.norms[1](seen @ second.view(-1, self.inner, self.width)))
        return F.relu(self.norm(self.out(seen.flatten(1))))


class Look(nn.Module):
    """One stage: self-attention, dynamic convolution, and outputs."""

    def __init__(self, width: int, num_classes: int, *, heads: int = 8, hidden: int = 2048) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.dynamic = DynamicConv(width)
        self.feed = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.class_tower, self.box_tower = _tower(width, 1), _tower(width, 3)
        self.classes, self.boxes = nn.Linear(width, num_classes), nn.Linear(width, 4)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        assume_rare(self.classes)

    def forward(self, features: Tensor, looked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, B, N, K, codes, B, N, 4, and features, B, N, width, from box features."""
        features = self.norms[0](features + self.attention(features, features, features, need_weights=False)[0])
        batch, count, width = features.shape
        seen = self.dynamic(features.reshape(-1, width), looked).view(batch, count, width)
        features = self.norms[1](features + seen)
        features = self.norms[2](features + self.feed(features))
        logits, codes = self.classes(self.class_tower(features)), self.boxes(self.box_tower(features))
        return logits.float(), codes.float(), features


def _tower(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width, bias=False), nn.LayerNorm(width), nn.ReLU()]
    return nn.Sequential(*layers)


class SparseRCNN(Head):
    """Sparse R-CNN with six stages, without anchors and non-maximum suppression.

    Args:
        width: channels of the pyramid and the features.
        proposals: number of learned boxes.
        looks: number of stages.
    """

    overlap, least = 1.0, 0.0

    def __init__(
        self, *, channels: Sequence[int], num_classes: int, width: int = 256, proposals: int = 100, looks: int = 6
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.fpn = FPN(channels, width, more="none")
        self.starts = nn.Parameter(torch.tensor([0.5, 0.5, 1.0, 1.0]).repeat(proposals, 1))  # centre and size
        self.features = nn.Parameter(torch.randn(proposals, width))
        self.looks = nn.ModuleList(Look(width, num_classes) for _ in range(looks))

    def forward(self, maps: Sequence[Tensor], size: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
        """Return logits, B, N, K, and boxes, B, N, 4, of every stage."""
        levels = self.fpn(maps)
        packed = pack(levels, [size[0] / one.shape[-2] for one in levels])
        boxes = from_centres(self.starts, size).expand(len(maps[0]), -1, -1)
        features = self.features.repeat(len(maps[0]), 1, 1)  # a copy: FLOP counters fail on views of parameters
        found = []
        for look in self.looks:
            seen = look_at(packed, clip(boxes, size).float(), SIDE, aligned=True)
            logits, codes, features = look(features, seen)
            boxes = decode(codes, boxes.float(), CODES)
            found.append((logits, boxes))
            boxes = boxes.detach()
        return found

    def losses(
        self, maps: Sequence[Tensor], objects: Objects, size: tuple[int, int], seeds: Tensor
    ) -> dict[str, Tensor]:
        """Return the losses of every stage: classes, L1 and GIoU of matched boxes."""
        count = objects.real.sum().clamp(min=1)
        parts: dict[str, Tensor] = {}
        for number, (logits, boxes) in enumerate(self(maps, size), 1):
            matched = match_one_to_one(logits, boxes, objects, size)
            positive = matched >= 0
            target, wanted = class_targets(objects, matched, self.num_classes)
            kinds = torch.where((in_crowd(boxes, objects) & ~positive)[..., None], 0, focal(logits, target)).sum()
            corners = torch.where(positive[..., None], in_sides(boxes - wanted, size).abs(), 0).sum()
            overlap = torch.where(positive, overlap_loss(boxes, wanted), 0).sum()
            parts[f"classes_{number}"] = CLASS * kinds / count
            parts[f"corners_{number}"] = CORNERS * corners / count
            parts[f"overlap_{number}"] = OVERLAP * overlap / count
        return parts

    def answers(self, maps: Sequence[Tensor], size: tuple[int, int]) -> Tensor:
        """Return the top objects of the last look, B, K, 6: box, score and class."""
        logits, boxes = self(maps, size)[-1]
        return top_answers(logits.sigmoid(), clip(boxes, size), self.kept)


def top_answers(scores: Tensor, boxes: Tensor, kept: int) -> Tensor:
    """Return the top objects, B, K, 6, of scores, B, N, classes, and boxes, B, N, 4."""
    classes, flat = scores.shape[-1], scores.flatten(1)
    value, place = flat.topk(min(kept, flat.shape[1]), dim=1)
    return Detections(take(boxes, place // classes), value, place % classes).rows()


@torch.no_grad()
def match_one_to_one(logits: Tensor, boxes: Tensor, objects: Objects, size: tuple[int, int]) -> Tensor:
    """Hungarian matching: return the object index of each prediction, B, N, -1 for none."""
    result = torch.full(logits.shape[:2], -1, dtype=torch.int64)
    gain = focal(logits, torch.ones_like(logits)) - focal(logits, torch.zeros_like(logits))
    wanted = objects.labels.clamp(min=0)[:, None].expand(-1, logits.shape[1], -1)
    cost = CLASS * gain.gather(2, wanted)  # B, N, M
    first, second = in_sides(boxes, size), in_sides(objects.boxes, size)
    cost = cost + CORNERS * (first[:, :, None] - second[:, None]).abs().sum(-1)
    shape = (*cost.shape, 4)
    pairs = generalized_overlap(boxes[:, :, None].expand(shape), objects.boxes[:, None].expand(shape))
    costs, real = (cost - OVERLAP * pairs).nan_to_num(1e6).cpu().numpy(), objects.real.cpu().numpy()
    for number in range(len(costs)):
        places = real[number].nonzero()[0]
        rows, columns = scipy.optimize.linear_sum_assignment(costs[number][:, places])
        result[number, rows] = torch.from_numpy(places[columns])
    return result.to(logits.device)


def from_centres(placed: Tensor, size: tuple[int, int]) -> Tensor:
    """Convert centres and sizes, ..., 4, relative to the image, to boxes in pixels."""
    middle, half = placed[..., :2], placed[..., 2:] / 2
    return in_sides(torch.cat([middle - half, middle + half], dim=-1), (1 / size[0], 1 / size[1]))


def in_sides(boxes: Tensor, size: tuple[float, float]) -> Tensor:
    """Convert boxes in pixels to fractions of the image."""
    return torch.stack([boxes[..., 0::2] / size[1], boxes[..., 1::2] / size[0]], dim=-1).flatten(-2)
