"""The image's own frame: boxes of letterboxed images in the original's pixels, and annotations of any size as runs."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .framing import Encoded, fitted

PIXELS = 2**22  # most pixels of images that a CPU processes at once, unless a single one has more
ON_GPU = 4  # times as many on a GPU, which waits for the calls


def own_boxes(boxes: Tensor, size: tuple[int, int], canvas: tuple[int, int]) -> Tensor:
    """Transform boxes, ..., 4, of a letterboxed image to pixels of the original one, without clipping.

    Args:
        size: height and width of the original image.
        canvas: height and width of the letterboxed one.
    """
    height, width = size
    left, top, wide, high = fitted(height, width, canvas)
    moved = (boxes - boxes.new_tensor([left, top] * 2)) / boxes.new_tensor([wide, high] * 2)
    return moved * boxes.new_tensor([width, height] * 2)


def to_runs(values: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return integers of any shape as runs in row-major order: their values int16, and lengths int32."""
    flat = values.ravel()
    starts = np.flatnonzero(np.append(True, flat[1:] != flat[:-1]))
    lengths = np.diff(np.append(starts, flat.size)).astype(np.int32)
    return torch.from_numpy(flat[starts].astype(np.int16)), torch.from_numpy(lengths)


def from_runs(values: Tensor, lengths: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the integers of runs, B, R, where padding has the length 0; B, *shape int16."""
    total = len(values) * math.prod(shape)
    values, lengths = values.flatten(), lengths.flatten()
    if values.device.type != "cpu":
        return values.repeat_interleave(lengths, output_size=total).view(-1, *shape)
    return torch.from_numpy(np.repeat(values.numpy(), lengths.numpy())).view(
        -1, *shape
    )  # without indices of all pixels


def pad_runs(samples: Sequence[Encoded]) -> list[Encoded]:
    """Pad the runs of encoded samples, `mask_values` and `mask_runs`, to the same number."""
    most = max(len(sample.get("mask_runs", ())) for sample in samples)
    padded = []
    for sample in samples:
        runs = {name: sample[name] for name in ("mask_values", "mask_runs") if name in sample}
        padded.append(sample | {name: F.pad(part, (0, most - len(part))) for name, part in runs.items()})
    return padded


def strips(rows: int, pixels: int, device: torch.device | None = None) -> Iterator[slice]:
    """Yield parts of the rows of images that fit in memory, for so many pixels a row, on a device or the CPU."""
    step = max(at_once(device) // max(pixels, 1), 1)
    for top in range(0, rows, step):
        yield slice(top, min(top + step, rows))


def at_once(device: torch.device | None, most: int | None = None) -> int:
    """Return how many pixels, or other numbers of which a CPU processes `most`, a device processes at once."""
    most = PIXELS if most is None else most
    return most if device is None or device.type == "cpu" else ON_GPU * most


def by_size(sizes: Tensor, device: torch.device | None = None) -> Iterator[tuple[tuple[int, int], Tensor]]:
    """Yield the sizes of a batch, B, 2, each with the indices of some of its images, as many as a device can hold."""
    found: dict[tuple[int, int], list[int]] = {}
    for place, (height, width) in enumerate(sizes.tolist()):
        found.setdefault((height, width), []).append(place)
    for size, places in found.items():
        for some in torch.tensor(places).split(max(at_once(device) // math.prod(size), 1)):
            yield size, some
