"""Whether an exported model answers as the one it was made from, on real images."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.feed import Batch
from ..data.framing import resize_images
from ..data.image import BadSample
from ..data.open import Data, open_data
from ..data.source import Source, Stream
from ..data.spec import InputSpec
from ..data.table import columns_as_trained
from ..runs.run import Run
from ..settings import DataConfig, TrainConfig
from ..tasks.opening import find_task, open_samples
from .bundle import ExportError

Raw = Callable[[Tensor], np.ndarray]  # uint8 B, C, H, W to raw answers B, ...
TOLERANCE = 1e-4
BATCHES = (1, 5)
CALIBRATION = 64  # training images that show the ranges of activations
SEVERAL = 10  # images whose raw answers are compared at every size


@dataclass(frozen=True)
class Evidence:
    """Real images to judge by.

    Args:
        samples: framed, uint8 N, C, S, S.
        targets: what they should be answered with, by name as a batch of the task has them; None where that is not
            known in terms of the model's outputs.
        origin: where they come from, in words.
    """

    samples: Tensor
    targets: Batch | None
    origin: str


@dataclass(frozen=True)
class Parity:
    """How far the raw answers of an exported model are from the eager one's."""

    difference: float  # the largest absolute one of an output
    scale: float  # the largest absolute eager output
    same: float  # share of the images with the same answer
    sizes: tuple[tuple[int, int], ...]  # that were compared, height and width

    def within(self, tolerance: float) -> bool:
        """Whether the difference is allowed; large numbers are rounded more coarsely, so their size counts."""
        return self.difference <= tolerance * max(1.0, self.scale)  # also False for nan


def gather(
    target: str | Path, spec: InputSpec, *, data: str | None = None, val: str | None = None, limit: int = 500
) -> Evidence:
    """Find real images: those named, else the run's validation images, else the embedded ones.

    Args:
        data: a set of samples, as `saccade train` takes it; its validation samples are used.
        val: that set's validation samples, if it has none of its own.
        limit: at most so many, spread over the set.
    """
    if data is not None:
        opened = _open(target, spec, data, val)
        return _evidence(opened.val, spec, f"validation samples of {data}", limit)
    try:
        opened = _open(target, spec, data, val)
        return _evidence(opened.val, spec, f"validation samples of the run ({opened.name})", limit)
    except (OSError, ValueError, ImportError):
        pass  # its data is elsewhere now: parity can be judged by any image, what is lost cannot
    return _evidence(open_data("").val, spec, "embedded images", limit)


def gather_training(
    target: str | Path, spec: InputSpec, *, data: str | None = None, val: str | None = None
) -> Tensor | None:
    """Return some training images, framed, uint8 N, C, S, S: of the set named, else of the run; None without any."""
    try:
        train = _open(target, spec, data, val).train
    except (OSError, ValueError, ImportError):
        return None
    found = []
    if isinstance(train, Stream):
        return None
    for index in np.unique(np.linspace(0, len(train) - 1, min(CALIBRATION, len(train))).round().astype(int)):
        with suppress(BadSample):
            found.append(spec.framing(train.read(int(index))))
    return torch.stack(found) if found else None


def _open(target: str | Path, spec: InputSpec, data: str | None, val: str | None) -> Data:
    """Open the set named, else the run's own; raises an error where a target is no run whose settings can be read."""
    try:
        config = Run.open(target).config()
    except (OSError, ValueError):
        if data is None:
            raise
        config = TrainConfig()
    if data is None:
        return open_samples(config.task or spec.task, config.data)[1]
    given = DataConfig(path=data, val=val, columns=columns_as_trained(data, config.data.columns))
    return open_samples(config.task or spec.task, given)[1]


def _evidence(source: Source, spec: InputSpec, origin: str, limit: int) -> Evidence:
    encode, framing = find_task(spec.task).codec(spec).encoder(), spec.framing
    known = source.task == spec.task and set(source.outputs) == set(spec.outputs)
    if not known and find_task(spec.task).reader.reads != "image":
        raise ExportError(
            f"an export is verified on samples of the model's task, which the {origin} are not; name a dataset with "
            "--data"
        )
    source = source.aligned(tuple(spec.outputs)) if known else source  # in the order of the model's outputs
    images, samples = [], []
    for index in np.unique(np.linspace(0, len(source) - 1, min(limit, len(source))).round().astype(int)):
        with suppress(BadSample):
            if known:
                samples.append(encode(source.sample(int(index))))
            else:
                images.append(framing(source.read(int(index))))
    if not images and not samples:
        raise ExportError(f"none of the {origin} can be read; name others with --data")
    if not known:
        return Evidence(torch.stack(images), None, origin)
    batch = encode.collate(samples)
    return Evidence(find_task(spec.task).codec(spec).pack(batch), batch, origin)


def widths_to_try(packed: Tensor) -> tuple[tuple[int, int], ...]:
    """Return the widths of rows of tokens, N, inputs, width, that a graph is compared at: their own, less and more."""
    inputs, width = packed.shape[1:]
    return (inputs, width), (inputs, max(width // 2, 3)), (inputs, width - 1), (inputs, 2 if width < 4 else 5)


def sizes_to_try(img_size: int) -> tuple[tuple[int, int], ...]:
    """Return the sizes of images a graph is compared at: the model's, a smaller one and an odd larger one."""
    return (img_size, img_size), (max(1, img_size * 3 // 4), img_size), (3 * img_size + 13, 2 * img_size + 5)


def compare(eager: Raw, exported: Raw, images: Tensor, sizes: Sequence[tuple[int, int]], spec: InputSpec) -> Parity:
    """Ask both the same, at every size, one image at a time and five, and return how they differ.

    Args:
        eager: the original, which is asked about images framed as `predict` frames them.
        exported: what is compared with it, which is given the images as they are.
        images: uint8 N, C, S, S; the first few are asked about.
        sizes: height and width of each.
        spec: of the model, whose task says which answers are the same.
    """
    task = find_task(spec.task)
    codec, presenter = task.codec(spec), task.presenter(spec)
    worst, scale, equal, asked = 0.0, 0.0, 0, 0
    for size in sizes:
        resized = _resize(images[:SEVERAL], size)
        for batch in BATCHES:
            parts = resized.split(batch) if batch > 1 else resized[:3].split(1)
            for part in parts:
                want, got = eager(_framed(part, spec)), exported(part)
                if want.shape != got.shape:
                    raise ExportError(f"an answer of shape {got.shape} came back where {want.shape} was due")
                difference = codec.gap(want, got)
                worst = difference if math.isnan(difference) else max(worst, difference)
                scale = max(scale, float(np.abs(want).max()))
                rows = [codec.read_output(raw) for raw in (want, got)]
                equal, asked = equal + int(presenter.same(*rows).sum()), asked + len(part)
                if math.isnan(worst):
                    return Parity(worst, scale, equal / asked, tuple(sizes))
    return Parity(worst, scale, equal / asked, tuple(sizes))


def _framed(images: Tensor, spec: InputSpec) -> Tensor:
    """Return images as the model is asked; texts as they are."""
    if find_task(spec.task).reader.reads != "image":
        return images
    return torch.stack([spec.framing(image.permute(1, 2, 0).numpy()) for image in images])


def _resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    if images.dtype != torch.uint8:  # texts: rows of another width, by leaving off or adding padding
        return F.pad(images[..., : size[1]], (0, max(size[1] - images.shape[-1], 0)))
    return resize_images(images, size)


def race(answers: Sequence[Raw], images: Tensor, *, rounds: int = 5) -> list[float]:
    """Return seconds an image for each, the median of rounds taken in turn so that all meet the same machine."""
    seconds: list[list[float]] = [[] for _ in answers]
    for number in range(rounds + 1):
        for place, answer in enumerate(answers):
            begin = time.perf_counter()
            answer(images)
            if number:  # the first warms up
                seconds[place].append((time.perf_counter() - begin) / len(images))
    return [median(values) for values in seconds]
