"""Verify exported files: equal outputs, and the loss in the task's metric."""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..data.spec import InputSpec
from ..tasks import MetricSpec
from ..tasks.metric import PLACE
from ..tasks.opening import find_task
from .bundle import Bundle, ExportError
from .predictor import OnnxPredictor, ProgramPredictor
from .verify import Parity, Raw, VerificationSet, compare, race, sizes_to_try, widths_to_try

AT_ONCE = 32  # batch size


@dataclass(frozen=True)
class Score:
    """A model's score."""

    metric: MetricSpec  # the metric
    value: float  # on all images
    each: np.ndarray | None  # by image, N, if the value is their mean; else None


@dataclass(frozen=True)
class Loss:
    """Loss in a metric: positive is worse; with a 95% interval over images, if available."""

    value: float
    low: float | None = None
    high: float | None = None


def measure(raw: Raw, evidence: VerificationSet, spec: InputSpec) -> Score | None:
    """Score raw outputs; None if targets are unknown or the score is NaN."""
    if evidence.targets is None:
        return None
    task = find_task(spec.task).build(nn.Identity(), spec)
    metric, metrics = task.metrics.primary_metric(spec), task.metrics(spec)
    for places in torch.arange(len(evidence.samples)).split(AT_ONCE):
        output = torch.from_numpy(raw(evidence.samples[places]))
        batch = {name: part[places] for name, part in evidence.targets.items()} | {PLACE: places}
        metrics.update(task.read(output, batch), batch)
    value = metrics.compute()[metric.name]
    each = None
    if metric.statistic is None and not metric.by_group:
        each = metrics.scores()[metric.column].numpy()
    return Score(metric, value, each) if math.isfinite(value) else None


def score_loss(eager: Score, exported: Score) -> Loss:
    """Return the loss of the exported model against the eager one on the same images."""
    better, worse = (eager, exported) if eager.metric.larger_is_better else (exported, eager)
    if better.each is None or worse.each is None:
        return Loss(better.value - worse.value)
    if all(one.each is not None and one.each.dtype.kind in "bu" and one.each.max() <= 1 for one in (better, worse)):
        return paired_loss(better.each.astype(bool), worse.each.astype(bool))
    return _paired_mean(better.each.astype(np.float64) - worse.each.astype(np.float64))


def paired_loss(eager: np.ndarray, exported: np.ndarray) -> Loss:
    """Return the loss in accuracy on the same images, N bool each, with the interval of Bonett and Price (2012).

    The interval does not vanish if both predict alike on all images.
    """
    count = len(eager)
    lost, won = int((eager & ~exported).sum()), int((~eager & exported).sum())
    worse, better = (lost + 1) / (count + 2), (won + 1) / (count + 2)
    middle = worse - better
    half = 1.959964 * math.sqrt((worse + better - middle**2) / (count + 2))
    return Loss((lost - won) / count, max(-1.0, middle - half), min(1.0, middle + half))


def _paired_mean(differences: np.ndarray) -> Loss:
    """Return the mean of differences, N, with Student's interval."""
    from scipy.special import stdtrit  # slow to import

    count, mean = len(differences), float(differences.mean())
    if count < 2:
        return Loss(mean)
    half = float(stdtrit(count - 1, 0.975) * differences.std(ddof=1) / math.sqrt(count))
    return Loss(mean, mean - half, mean + half)


@dataclass(frozen=True)
class ExportedFile:
    """An exported file and its measurements.

    Args:
        path: path of the file.
        format: onnx or pt2.
        precision: float32, float16 or int8.
        mib: size in MiB.
        sha256: hash of its bytes.
        parity: parity with the eager model; required for float32 only.
        score: score in the task's primary metric, if targets are known.
        loss: loss against the eager model on the same images.
        seconds: seconds an image, in batches of five.
        eager_seconds: likewise for the eager model, measured in turns.
    """

    path: Path
    format: str
    precision: str
    mib: float
    sha256: str
    parity: Parity
    score: float | None
    loss: Loss | None
    seconds: float
    eager_seconds: float


@dataclass(frozen=True)
class Exported:
    """Result of an export.

    Args:
        folder: folder of the files.
        bundle: metadata of the files.
        files: exported files, in order.
        samples: number of images for verification.
        origin: origin of these images.
        metric: the task's primary metric.
        score: score of the eager model, if targets are known.
        notes: remarks.
    """

    folder: Path
    bundle: Bundle
    files: tuple[ExportedFile, ...]
    samples: int
    origin: str
    metric: MetricSpec
    score: float | None
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<Exported {self.folder}: {', '.join(f'{file.path.name} {file.mib:.1f} MiB' for file in self.files)}>"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, with files by name and scores by the name of their metric, such as `accuracy`."""
        record = self._named(asdict(self)) | {"bundle": self.bundle.to_dict(), "metric": self.metric.to_dict()}
        del record["folder"]
        record["files"] = [self._named(asdict(file)) | {"path": file.path.name} for file in self.files]
        return record

    def _named(self, record: dict[str, Any]) -> dict[str, Any]:
        words = re.sub(r"\W+", "_", self.metric.words)
        return {words if name == "score" else name: value for name, value in record.items()}


class Judge:
    """Verifies files against the original model on given images.

    Args:
        tolerance: largest allowed difference of an output, relative to the largest output if that exceeds one.
    """

    def __init__(self, eager: Raw, evidence: VerificationSet, spec: InputSpec, *, tolerance: float) -> None:
        self.eager, self.evidence, self.spec, self.tolerance = eager, evidence, spec, tolerance
        self.metric = find_task(spec.task).metrics.primary_metric(spec)
        self.measured = measure(eager, evidence, spec)

    @property
    def score(self) -> float | None:
        """Score of the original, if targets are known."""
        return None if self.measured is None else self.measured.value

    def measure(self, form: str, path: Path, bundle: Bundle) -> ExportedFile:
        """Measure a file; raise if it fails verification."""
        whole = OnnxPredictor(path, framed=False) if form == "onnx" else ProgramPredictor(path, trust=True)
        parity = self._parity(form, whole.outputs, bundle)
        opened = OnnxPredictor(path) if form == "onnx" else whole
        measured = measure(opened.outputs, self.evidence, self.spec)
        eager_seconds, seconds = race([self.eager, opened.outputs], self.evidence.samples[:5])
        return ExportedFile(
            path=path,
            format=form,
            precision=bundle.precision,
            mib=path.stat().st_size / 2**20,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            parity=parity,
            score=None if measured is None else measured.value,
            loss=None if measured is None or self.measured is None else score_loss(self.measured, measured),
            seconds=seconds,
            eager_seconds=eager_seconds,
        )

    def _parity(self, form: str, answer: Raw, bundle: Bundle) -> Parity:
        sizes = sizes_to_try(bundle.img_size)
        if bundle.kind.reader.reads == "text":
            sizes = widths_to_try(self.evidence.samples)
        elif bundle.kind.reader.reads == "question":
            sizes = ((1, self.evidence.samples.shape[-1]),)
        try:
            parity = compare(self.eager, answer, self.evidence.samples, sizes, self.spec)
        except ExportError:
            raise
        except Exception as error:  # from the runtime, for unsupported image or batch sizes
            raise ExportError(f"the exported {form} fails where the original succeeds: {str(error)[:300]}") from error
        if bundle.precision == "float32" and not parity.within(self.tolerance):
            raise ExportError(
                f"the exported {form} differs from the original by up to {parity.difference:.3g} in an output, more "
                f"than {self.tolerance:g} (times the largest output, {parity.scale:.3g}), at "
                f"{_sizes(sizes)}; it was not kept"
            )
        if not np.isfinite(parity.difference):
            raise ExportError(f"the {bundle.precision} version gives non-finite numbers; it was not kept")
        return parity


def _sizes(sizes: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{height} x {width}" for height, width in sizes)
