"""Helpers that several files of the tests of targets use."""

import torch

from saccade.tasks.detection.objects import Objects

CHANNELS = (8, 8, 8, 8)


def boxes(*rows: tuple[float, float, float, float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def objects(*rows: tuple[float, float, float, float], labels: list[int], crowd: list[bool] | None = None) -> Objects:
    hidden = torch.tensor([crowd or [False] * len(labels)])
    return Objects(boxes(*rows)[None], torch.tensor([labels]), hidden)
