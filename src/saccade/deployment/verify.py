"""Compare an exported model with the original on real images."""

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

Raw = Callable[[Tensor], np.ndarray]  # uint8 B, C, H, W to raw outputs B, ...
TOLERANCE = 1e-4
BATCHES = (1, 5)
CALIBRATION = 64  # training images for calibration
SEVERAL = 10  # images compared at every size


@dataclass(frozen=True)
class VerificationSet:
    """Images for verification.

    Args:
        samples: framed, uint8 N, C, S, S.
        targets: targets by name, as in a batch of the task; None if unknown for the model's outputs.
        origin: description of their origin.
    """

    samples: Tensor
    targets: Batch | None
    origin: str


@dataclass(frozen=True)
class Parity:
    """Difference of raw outputs of an exported model from the eager one's."""

    difference: float  # largest absolute difference of an output
    scale: float  # largest absolute eager output
    same: float  # share of images with the same prediction
    sizes: tuple[tuple[int, int], ...]  # compared sizes, height and width

    def within(self, tolerance: float) -> bool:
        """Whether the difference is within the tolerance, relative to the largest output if that exceeds one."""
        return self.difference <= tolerance * max(1.0, self.scale)  # also False for nan


def gather(
    target: str | Path, spec: InputSpec, *, data: str | None = None, val: str | None = None, limit: int = 500
) -> VerificationSet:
    """Find images: from the given dataset, else the run's validation images, else the bundled ones.

    Args:
        data: dataset as for `saccade train`; its validation samples are used.
        val: validation samples of that dataset, if it has none of its own.
        limit: most images, evenly spaced.
    """
    if data is not None:
        opened = _open(target, spec, data, val)
        return _evidence(opened.val, spec, f"validation samples of {data}", limit)
    try:
        opened = _open(target, spec, data, val)
        return _evidence(opened.val, spec, f"validation samples of the run ({opened.name})", limit)
    except (OSError, ValueError, ImportError):
        pass  # the run's data has moved: parity can be checked with any image, the loss cannot
    return _evidence(open_data("").val, spec, "bundled images", limit)


def calibration_images(
    target: str | Path, spec: InputSpec, *, data: str | None = None, val: str | None = None
) -> Tensor | None:
    """Return framed training images, uint8 N, C, S, S, of the given dataset or of the run; None if there are none."""
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
    """Open the given dataset, else the run's; raises if the target is not a run with readable settings."""
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


def _evidence(source: Source, spec: InputSpec, origin: str, limit: int) -> VerificationSet:
    encode, framing = find_task(spec.task).codec(spec).encoder(), spec.framing
    known = source.task == spec.task and set(source.outputs) == set(spec.outputs)
    if not known and find_task(spec.task).reader.reads != "image":
        raise ExportError(
            f"an export is verified on samples of the model's task, but the {origin} are for another; give a dataset "
            "with --data"
        )
    source = source.aligned(tuple(spec.outputs)) if known else source  # map to the model's outputs
    images, samples = [], []
    for index in np.unique(np.linspace(0, len(source) - 1, min(limit, len(source))).round().astype(int)):
        with suppress(BadSample):
            if known:
                samples.append(encode(source.sample(int(index))))
            else:
                images.append(framing(source.read(int(index))))
    if not images and not samples:
        raise ExportError(f"none of the {origin} can be read; give other samples with --data")
    if not known:
        return VerificationSet(torch.stack(images), None, origin)
    batch = encode.collate(samples)
    return VerificationSet(find_task(spec.task).codec(spec).pack(batch), batch, origin)


def widths_to_try(packed: Tensor) -> tuple[tuple[int, int], ...]:
    """Return the token widths to compare for inputs N, inputs, width: their own, a smaller and a larger one."""
    inputs, width = packed.shape[1:]
    return (inputs, width), (inputs, max(width // 2, 3)), (inputs, width - 1), (inputs, 2 if width < 4 else 5)


def sizes_to_try(img_size: int) -> tuple[tuple[int, int], ...]:
    """Return the image sizes to compare: the model's, a smaller one and an odd larger one."""
    return (img_size, img_size), (max(1, img_size * 3 // 4), img_size), (3 * img_size + 13, 2 * img_size + 5)


def compare(eager: Raw, exported: Raw, images: Tensor, sizes: Sequence[tuple[int, int]], spec: InputSpec) -> Parity:
    """Compare both models at every size, in batches of one and five.

    Args:
        eager: the original, which gets images framed as by `predict`.
        exported: the exported model, which gets the images unframed.
        images: uint8 N, C, S, S; the first few are used.
        sizes: height and width of each.
        spec: the model's specification, whose task compares predictions.
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
                    raise ExportError(f"the output has shape {got.shape}, expected {want.shape}")
                difference = codec.gap(want, got)
                worst = difference if math.isnan(difference) else max(worst, difference)
                scale = max(scale, float(np.abs(want).max()))
                rows = [codec.read_output(raw) for raw in (want, got)]
                equal, asked = equal + int(presenter.same(*rows).sum()), asked + len(part)
                if math.isnan(worst):
                    return Parity(worst, scale, equal / asked, tuple(sizes))
    return Parity(worst, scale, equal / asked, tuple(sizes))


def _framed(images: Tensor, spec: InputSpec) -> Tensor:
    """Frame images; texts are returned unchanged."""
    if find_task(spec.task).reader.reads != "image":
        return images
    return torch.stack([spec.framing(image.permute(1, 2, 0).numpy()) for image in images])


def _resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    if images.dtype != torch.uint8:  # texts: change the width by padding
        return F.pad(images[..., : size[1]], (0, max(size[1] - images.shape[-1], 0)))
    return resize_images(images, size)


def race(answers: Sequence[Raw], images: Tensor, *, rounds: int = 5) -> list[float]:
    """Return seconds an image for each model, the median of alternating rounds."""
    seconds: list[list[float]] = [[] for _ in answers]
    for number in range(rounds + 1):
        for place, answer in enumerate(answers):
            begin = time.perf_counter()
            answer(images)
            if number:  # the first round is a warm-up
                seconds[place].append((time.perf_counter() - begin) / len(images))
    return [median(values) for values in seconds]
