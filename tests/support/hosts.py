"""Hosts that timm does not have, in outline: two branches as in Conformer, sampled tokens as in PS-ViT, iRPE's keys."""

import timm
import torch
import torch.nn.functional as F
from torch import nn


def convolve(*widths, stride=1):
    """Return a bottleneck: 1x1, 3x3, 1x1, each with its norm."""
    before, after = widths
    narrow = after // 4
    return nn.Sequential(
        nn.Conv2d(before, narrow, 1, bias=False),
        nn.BatchNorm2d(narrow),
        nn.ReLU(),
        nn.Conv2d(narrow, narrow, 3, stride, 1, bias=False),
        nn.BatchNorm2d(narrow),
        nn.ReLU(),
        nn.Conv2d(narrow, after, 1, bias=False),
        nn.BatchNorm2d(after),
    )


class Couple(nn.Module):
    """Two bottlenecks and a transformer block; each branch is told of the other's features."""

    def __init__(self, before, after, block, *, stride=1):
        super().__init__()
        self.first, self.second, self.block = convolve(before, after, stride=stride), convolve(after, after), block
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if before != after or stride > 1 else None
        dim = block.norm1.normalized_shape[0]
        self.down, self.up = nn.Conv2d(after // 4, dim, 1), nn.Conv2d(dim, after // 4, 1)
        self.down_norm, self.up_norm = nn.LayerNorm(dim), nn.BatchNorm2d(after // 4)

    def forward(self, x, tokens):
        narrow = self.first[:-2](x)
        x = F.relu(self.first[-2:](narrow) + (x if self.shortcut is None else self.shortcut(x)))
        side = int((tokens.shape[1] - 1) ** 0.5)
        told = F.adaptive_avg_pool2d(self.down(narrow), side).flatten(2).mT
        tokens = self.block(tokens + F.pad(self.down_norm(told), (0, 0, 1, 0)))
        back = tokens[:, 1:].mT.unflatten(2, (side, side))
        back = F.interpolate(F.relu(self.up_norm(self.up(back))), size=narrow.shape[-2:])
        inner = self.second[:3](x)
        return F.relu(self.second[6:](self.second[3:6](inner + back)) + x), tokens


class ConformerLike(nn.Module):
    """Conformer-Ti in outline: a ResNet of three stages beside twelve blocks of a ViT, a classifier for each."""

    def __init__(self, num_classes=1000, *, dim=384, num_heads=6, depth=12, width=64):
        super().__init__()
        blocks = timm.create_model("vit_tiny_patch16_224", embed_dim=dim, num_heads=num_heads, depth=depth).blocks
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.first = convolve(64, width)
        self.to_tokens = nn.Conv2d(64, dim, 4, 4)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.block = blocks[0]
        widths = [width] * (depth // 3) + [2 * width] * (depth // 3) + [4 * width] * (depth - 2 * (depth // 3))
        self.couples = nn.ModuleList(
            Couple(before, after, block, stride=2 if before != after else 1)
            for before, after, block in zip(widths, widths[1:], list(blocks)[1:], strict=False)
        )
        self.norm = nn.LayerNorm(dim)
        self.token_head = nn.Linear(dim, num_classes)
        self.map_head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], num_classes))

    def forward(self, x):
        x = self.stem(x)
        tokens = self.to_tokens(x).flatten(2).mT
        tokens = self.block(torch.cat([self.class_token.expand(len(x), -1, -1), tokens], 1))
        x = F.relu(self.first(x) + x)
        for couple in self.couples:
            x, tokens = couple(x, tokens)
        tokens = self.norm(tokens)
        pooled = (
            self.token_head(tokens) if not isinstance(self.token_head, nn.Linear) else self.token_head(tokens[:, 0])
        )
        return pooled + self.map_head(x)


class OfMap(nn.Module):
    """A head of tokens on a map, B, C, H, W."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, x):
        return self.head(x.flatten(2).mT)


class ProgressiveLike(nn.Module):
    """PS-ViT in outline: tokens read from a stem's map where the ones before them say, then a ViT's blocks."""

    def __init__(self, num_classes=1000, *, dim=384, num_heads=6, depth=10, rounds=4, grid=14):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(64, dim, 1),
        )
        vit = timm.create_model("vit_tiny_patch16_224", embed_dim=dim, num_heads=num_heads, depth=1 + depth)
        self.sampler, self.blocks = vit.blocks[0], vit.blocks[1:]  # one block for every round
        self.offsets = nn.ModuleList(nn.Linear(dim, 2) for _ in range(rounds - 1))
        self.norm, self.head, self.grid = nn.LayerNorm(dim), nn.Linear(dim, num_classes), grid

    def forward(self, x):
        x = self.stem(x)
        line = (torch.arange(self.grid, device=x.device) + 0.5) / self.grid * 2 - 1
        places = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).expand(len(x), -1, -1, -1)
        tokens = 0
        for number in range(len(self.offsets) + 1):
            read = F.grid_sample(x, places, align_corners=False).flatten(2).mT
            tokens = self.sampler(read + tokens)
            if number < len(self.offsets):
                places = places + self.offsets[number](tokens).tanh().unflatten(1, (self.grid, self.grid)) / self.grid
        return self.head(self.norm(self.blocks(tokens)).mean(1))


class KeyedAttention(nn.Module):
    """iRPE's contextual product on keys: each query meets a vector of the bucket of its distance to the key."""

    def __init__(self, attention, *, buckets=50):
        super().__init__()
        self.inner = attention
        self.table = nn.Parameter(torch.zeros(attention.head_dim, buckets))

    def forward(self, x, **_):
        inner = self.inner
        q, k, v = inner.qkv(x).unflatten(2, (3, inner.num_heads, inner.head_dim)).permute(2, 0, 3, 1, 4)
        place = torch.arange(x.shape[1], device=x.device)
        bucket = (place[:, None] - place).abs().clamp(max=self.table.shape[1] - 1)
        told = torch.bmm(q.flatten(0, 1), self.table.expand(q.shape[0] * q.shape[1], -1, -1)).unflatten(0, q.shape[:2])
        bias = told.gather(3, bucket.expand(*q.shape[:2], -1, -1))
        weights = ((q @ k.mT) * inner.scale + bias).softmax(-1)
        return inner.proj((weights @ v).transpose(1, 2).flatten(2))


def irpe_tiny(**options):
    """Return DeiT-T with iRPE on keys, shared by the heads."""
    model = timm.create_model("deit_tiny_patch16_224", **options)
    for block in model.blocks:
        block.attn = KeyedAttention(block.attn)
    return model


class Plain(nn.Module):
    """A convolution and a classifier, and nothing that tells what it is."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 16, stride=16)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.conv(x).mean((2, 3)))
