"""The conditions under which models are asked: corrupted and occluded pictures."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .bootstrap import Resampled, average
from .corruptions import CORRUPTIONS, SEVERITIES, corrupt
from .occlusions import CENTRE, DROPPED, PIECES, drop_patches, occlude_centre, shuffle_patches

THREADED = 96  # side from which the work on a picture is more than that of handing it to a thread


@dataclass(frozen=True)
class Condition:
    """Something done to pictures before a model sees them.

    Args:
        key: its name among the metrics.
        family: occlusion or corruption.
        title: in words.
        level: how much, for a chart.
        change: a picture, uint8 H, W, C, and its word to the changed picture.
    """

    key: str
    family: str
    title: str
    level: float
    change: Callable[[np.ndarray, int], np.ndarray]


def occlusions(side: int) -> list[Condition]:
    """Return the occlusions there are for pictures of a side."""
    found = [
        Condition(f"centre_occlusion.{share:g}", "occlusion", "centre occlusion", share, _centre(share))
        for share in CENTRE
    ]
    found += [Condition(f"patch_drop.{share:g}", "occlusion", "patch drop", share, _drop(share)) for share in DROPPED]
    found += [
        Condition(f"patch_shuffle.{pieces}", "occlusion", "patch shuffle", pieces, _shuffle(pieces))
        for pieces in PIECES
        if pieces <= side
    ]
    return found


def corruptions(channels: int) -> list[Condition]:
    """Return every corruption at every severity; those of colour only for pictures that have some."""
    return [
        Condition(f"corruption.{name}.{level}", "corruption", name.replace("_", " "), level, _corrupt(name, level))
        for name, found in CORRUPTIONS.items()
        if channels == 3 or not found.colour
        for level in SEVERITIES
    ]


def apply(condition: Condition, pictures: Tensor, words: Sequence[int], *, pool: Executor | None = None) -> Tensor:
    """Return changed pictures, uint8 B, C, H, W; each depends on itself and its word alone.

    Args:
        condition: what is done to them.
        pictures: uint8 B, C, H, W.
        words: one a picture, which its draws are functions of.
        pool: threads to change several pictures at a time, where they are large enough to be worth it.
    """
    arrays = pictures.permute(0, 2, 3, 1).cpu().numpy()
    across = map if pool is None or min(arrays.shape[1:3]) < THREADED else pool.map
    return torch.from_numpy(np.stack(list(across(condition.change, arrays, words)))).permute(0, 3, 1, 2)


def mean_name(metric: str) -> str:
    """Return the name of a metric's mean over all corruptions."""
    return f"robust.mean_corruption_{metric}"


def add_means(numbers: dict[str, Resampled], metric: str) -> dict[str, Resampled]:
    """Return numbers with each corruption's mean over severities, and the mean of these, resample by resample.

    Args:
        numbers: by name, those of conditions among them.
        metric: that was measured under the conditions.
    """
    found = dict(numbers)
    means = []
    for name in CORRUPTIONS:
        parts = [numbers[f"corruption.{name}.{s}"] for s in SEVERITIES if f"corruption.{name}.{s}" in numbers]
        if parts:
            means.append(average(parts))
            found[f"corruption.{name}"] = means[-1]
    if means:
        found[mean_name(metric)] = average(means)
    return found


def _centre(share: float) -> Callable[[np.ndarray, int], np.ndarray]:
    return lambda picture, _: occlude_centre(picture, share)


def _drop(share: float) -> Callable[[np.ndarray, int], np.ndarray]:
    return lambda picture, word: drop_patches(picture, share, word=word)


def _shuffle(pieces: int) -> Callable[[np.ndarray, int], np.ndarray]:
    return lambda picture, word: shuffle_patches(picture, pieces, word=word)


def _corrupt(name: str, severity: int) -> Callable[[np.ndarray, int], np.ndarray]:
    return lambda picture, word: corrupt(picture, name, severity, word=word)
