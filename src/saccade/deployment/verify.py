"""Whether an exported model answers as the one it was made from, on real pictures."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..building import Shape
from ..data.open import open_configured, open_data
from ..data.picture import BadPicture
from ..data.source import Source
from ..runs import Run, RunError
from .bundle import ExportError

Answer = Callable[[Tensor], np.ndarray]  # uint8 B, C, H, W to logits B, K
TOLERANCE = 1e-4
BATCHES = (1, 5)
SEVERAL = 10  # pictures whose logits are compared at every size
AT_ONCE = 32  # pictures asked together for the accuracy


@dataclass(frozen=True)
class Evidence:
    """Real pictures to judge by.

    Args:
        pictures: framed, uint8 N, C, S, S.
        labels: N int64, where the classes are the model's.
        origin: where they come from, in words.
    """

    pictures: Tensor
    labels: np.ndarray | None
    origin: str


@dataclass(frozen=True)
class Parity:
    """How far the logits of an exported model are from the eager one's.

    Args:
        difference: the largest absolute one.
        scale: the largest absolute eager logit.
        same: share of the pictures with the same answer.
        sizes: that were compared, height and width.
    """

    difference: float
    scale: float
    same: float
    sizes: tuple[tuple[int, int], ...]

    def within(self, tolerance: float) -> bool:
        """Whether the difference is allowed; large logits are rounded more coarsely, so their size counts."""
        return self.difference <= tolerance * max(1.0, self.scale)  # also False for nan


@dataclass(frozen=True)
class Loss:
    """Accuracy lost, as a share: positive is worse; with its 95% interval over pictures."""

    value: float
    low: float
    high: float


def gather(
    target: str | Path, shape: Shape, *, data: str | None = None, val: str | None = None, limit: int = 500
) -> Evidence:
    """Find real pictures: those named, else the run's validation pictures, else the embedded ones.

    Args:
        target: what is exported, perhaps a run.
        shape: of its pictures.
        data: a set of pictures, as `saccade train` takes it; its validation pictures are used.
        val: that set's validation pictures, if it has none of its own.
        limit: at most so many, spread over the set.
    """
    if data is not None:
        return _evidence(open_data(data, val=val).val, shape, f"validation pictures of {data}", limit)
    try:
        opened = open_configured(Run.open(target).config().data)
        return _evidence(opened.val, shape, f"validation pictures of the run ({opened.name})", limit)
    except (RunError, OSError, ValueError, ImportError):
        # No run, or its data is elsewhere now: parity can be judged by any picture, accuracy cannot.
        return _evidence(open_data("").val, shape, "embedded pictures", limit)


def _evidence(source: Source, shape: Shape, origin: str, limit: int) -> Evidence:
    framing = shape.framing
    known = set(source.classes) == set(shape.classes)
    source = source.renamed(tuple(shape.classes)) if known else source  # in the order of the logits
    pictures, labels = [], []
    for index in np.unique(np.linspace(0, len(source) - 1, min(limit, len(source))).round().astype(int)):
        try:
            pictures.append(framing(source.read(int(index))))
            labels.append(int(source.labels[index]))
        except BadPicture:
            continue
    if not pictures:
        raise ExportError(f"none of the {origin} can be read; name others by --data")
    return Evidence(torch.stack(pictures), np.array(labels) if known else None, origin)


def sizes_to_try(img_size: int, *, any_size: bool) -> tuple[tuple[int, int], ...]:
    """Return the sizes a graph is compared at: the model's, and where it takes others a wide and an odd one."""
    if not any_size:
        return ((img_size, img_size),)
    return (img_size, img_size), (max(32, img_size * 3 // 4), max(48, img_size)), (img_size + 13, img_size + 32)


def compare(eager: Answer, exported: Answer, pictures: Tensor, sizes: Sequence[tuple[int, int]]) -> Parity:
    """Ask both the same, at every size, one picture at a time and five, and return how they differ."""
    worst, scale, equal, asked = 0.0, 0.0, 0, 0
    for size in sizes:
        resized = _resize(pictures[:SEVERAL], size)
        for batch in BATCHES:
            parts = resized.split(batch) if batch > 1 else resized[:3].split(1)
            for part in parts:
                want, got = eager(part), exported(part)
                if want.shape != got.shape:
                    raise ExportError(f"logits of shape {got.shape} came back where {want.shape} were due")
                difference = float(np.abs(want - got).max())
                worst = difference if math.isnan(difference) else max(worst, difference)
                scale = max(scale, float(np.abs(want).max()))
                equal, asked = equal + int((want.argmax(1) == got.argmax(1)).sum()), asked + len(part)
                if math.isnan(worst):
                    return Parity(worst, scale, equal / asked, tuple(sizes))
    return Parity(worst, scale, equal / asked, tuple(sizes))


def _resize(pictures: Tensor, size: tuple[int, int]) -> Tensor:
    if tuple(pictures.shape[-2:]) == size:
        return pictures
    resized = F.interpolate(pictures.float(), size, mode="bicubic", antialias=True)
    return resized.round_().clamp_(0, 255).to(torch.uint8)


def correct(answer: Answer, evidence: Evidence) -> np.ndarray | None:
    """Return which pictures are answered rightly, N bool; None without labels."""
    if evidence.labels is None:
        return None
    answers = [answer(part).argmax(1) for part in evidence.pictures.split(AT_ONCE)]
    return np.concatenate(answers) == evidence.labels


def paired_loss(eager: np.ndarray, exported: np.ndarray) -> Loss:
    """Return the accuracy lost on the same pictures, with the interval of Bonett and Price (2012).

    It stays honest where both answer alike: no difference in 500 pictures is not a difference of nothing.
    """
    count = len(eager)
    lost, won = int((eager & ~exported).sum()), int((~eager & exported).sum())
    worse, better = (lost + 1) / (count + 2), (won + 1) / (count + 2)
    middle = worse - better
    half = 1.959964 * math.sqrt((worse + better - middle**2) / (count + 2))
    return Loss((lost - won) / count, max(-1.0, middle - half), min(1.0, middle + half))


def race(answers: Sequence[Answer], pictures: Tensor, *, rounds: int = 5) -> list[float]:
    """Return seconds a picture for each, the median of rounds taken in turn so that all meet the same machine."""
    seconds: list[list[float]] = [[] for _ in answers]
    for number in range(rounds + 1):
        for place, answer in enumerate(answers):
            begin = time.perf_counter()
            answer(pictures)
            if number:  # the first warms up
                seconds[place].append((time.perf_counter() - begin) / len(pictures))
    return [median(values) for values in seconds]
