"""Robustness conditions: corruptions, occlusions, shuffled patches, light noise."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from ..statistics.bootstrap import Resampled, average
from .corruptions import CORRUPTIONS, SEVERITIES, corrupt

CENTRE = (0.1, 0.25, 0.5)  # shares of the area; 0.25 is 112 x 112 of 224, as in the CB paper's Table 8
DROPPED = (0.25, 0.5, 0.75)  # shares of the patches
PIECES = (2, 4, 8)  # number of pieces along a side
REPEATS = 5  # draws of each light noise
THREADED = 96  # side from which threads are faster


@dataclass(frozen=True)
class Condition:
    """A change of the images before inference."""

    key: str  # name in metrics
    title: str  # in words
    change: Callable[..., np.ndarray]  # maps an image, uint8 H, W, C, and `rng_key=` to the changed image


def occlusions(side: int) -> list[Condition]:
    """Return the occlusions for images of the given side."""
    kinds: list[tuple[str, str, Sequence[float], Callable[..., np.ndarray]]] = [
        ("centre_occlusion", "share", CENTRE, occlude_centre),
        ("patch_drop", "share", DROPPED, drop_patches),
        ("patch_shuffle", "pieces", [pieces for pieces in PIECES if pieces <= side], shuffle_patches),
    ]
    return [
        Condition(f"{name}.{level:g}", name.replace("_", " "), partial(change, **{option: level}))
        for name, option, levels, change in kinds
        for level in levels
    ]


def corruptions(channels: int) -> list[Condition]:
    """Return every corruption at every severity; colour corruptions only for colour images."""
    return [
        Condition(f"corruption.{name}.{level}", name.replace("_", " "), partial(corrupt, name=name, severity=level))
        for name, found in CORRUPTIONS.items()
        if channels == 3 or not found.colour
        for level in SEVERITIES
    ]


def apply(condition: Condition, images: Tensor, rng_keys: Sequence[int], *, pool: Executor | None = None) -> Tensor:
    """Return changed images, uint8 B, C, H, W; each only depends on itself and its key.

    Args:
        rng_keys: the images' random keys.
        pool: threads, used for large images.
    """
    arrays = images.permute(0, 2, 3, 1).cpu().numpy()
    across = map if pool is None or min(arrays.shape[1:3]) < THREADED else pool.map
    changed = across(lambda image, rng_key: condition.change(image, rng_key=rng_key), arrays, rng_keys)
    return torch.from_numpy(np.stack(list(changed))).permute(0, 3, 1, 2)


def mean_name(metric: str) -> str:
    """Return the name of a metric's mean over corruptions."""
    return f"robust.mean_corruption_{metric}"


def add_means(numbers: dict[str, Resampled], metric: str) -> dict[str, Resampled]:
    """Add each corruption's mean over severities, and the mean of these, for each resample."""
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


def occlude_centre(image: np.ndarray, share: float, *, rng_key: int = 0) -> np.ndarray:  # noqa: ARG001
    """Black out the centre of an image, uint8 H, W, C: a rectangle with the given share of its area."""
    found = image.copy()
    height, width = image.shape[:2]
    h, w = (round(side * math.sqrt(share)) for side in (height, width))
    top, left = (height - h) // 2, (width - w) // 2
    found[top : top + h, left : left + w] = 0
    return found


def drop_patches(image: np.ndarray, share: float, *, rng_key: int) -> np.ndarray:
    """Black out a random share of an image's patches, uint8 H, W, C.

    Patches are 1/14 of a side (16 pixels of 224), or 1/7 for sides below 112.
    """
    height, width = image.shape[:2]
    pieces = min(14 if min(height, width) >= 112 else 7, height, width)
    random = np.random.default_rng([rng_key, 1, round(1000 * share)])
    dropped = random.permutation(pieces * pieces).reshape(pieces, pieces) < round(share * pieces * pieces)
    rows, columns = np.arange(height) * pieces // height, np.arange(width) * pieces // width
    return np.where(dropped[rows[:, None], columns[None], None], np.uint8(0), image)


def shuffle_patches(image: np.ndarray, pieces: int, *, rng_key: int) -> np.ndarray:
    """Shuffle an image's pieces, uint8 H, W, C, in a grid of pieces x pieces.

    Args:
        image: the image, which is not changed in place; pixels beyond a divisible side stay where they are.
    """
    height, width, channels = image.shape
    h, w = height // pieces, width // pieces
    if not (h and w):
        raise ValueError(f"cannot cut an image of {height} x {width} pixels into {pieces} pieces along a side")
    top, left = (height - h * pieces) // 2, (width - w * pieces) // 2
    inner = slice(top, top + h * pieces), slice(left, left + w * pieces)
    cells = image[inner].reshape(pieces, h, pieces, w, channels).swapaxes(1, 2).reshape(-1, h, w, channels)
    mixed = cells[np.random.default_rng([rng_key, 2, pieces]).permutation(len(cells))]
    found = image.copy()
    found[inner] = mixed.reshape(pieces, pieces, h, w, channels).swapaxes(1, 2).reshape(h * pieces, -1, channels)
    return found


Noise = Callable[[np.ndarray, np.random.Generator], np.ndarray]  # H, W, C from 0 to 255 and draws -> the same


@dataclass(frozen=True)
class Perturbation:
    """A light perturbation of Context Broadcasting's table 9."""

    name: str  # name in metrics
    title: str  # in words
    change: Noise  # the function
    drawn: bool = True  # whether it is random, and hence repeated

    @property
    def repeats(self) -> int:
        """Number of draws."""
        return REPEATS if self.drawn else 1


def perturbations() -> list[Condition]:
    """Return every perturbation with all its draws."""
    return [
        Condition(f"noise.{one.name}.{repeat}", one.title, _change(one, repeat))
        for one in PERTURBATIONS
        for repeat in range(one.repeats)
    ]


def _change(one: Perturbation, repeat: int) -> Callable[..., np.ndarray]:
    number = [other.name for other in PERTURBATIONS].index(one.name)

    def change(image: np.ndarray, *, rng_key: int) -> np.ndarray:
        draws = np.random.default_rng([rng_key, number, repeat, 9])
        return np.clip(np.rint(one.change(image.astype(np.float32), draws)), 0, 255).astype(np.uint8)

    return change


def _gaussian(sigma: float) -> Noise:
    return lambda x, draws: x + sigma * draws.standard_normal(x.shape, dtype=np.float32)


def _blur(sigma: float) -> Noise:
    return lambda x, _: ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="reflect")


PERTURBATIONS = (
    Perturbation("shot", "shot noise", lambda x, draws: draws.poisson(x).astype(np.float32)),
    Perturbation("gaussian_5", "Gaussian noise, sigma 5", _gaussian(5)),
    Perturbation("gaussian_10", "Gaussian noise, sigma 10", _gaussian(10)),
    Perturbation("blur_1", "Gaussian blur, sigma 1", _blur(1), drawn=False),
    Perturbation("blur_2", "Gaussian blur, sigma 2", _blur(2), drawn=False),
)
