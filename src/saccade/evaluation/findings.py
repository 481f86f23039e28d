"""Results of an evaluation."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..report.page import Section
from ..report.tally import Bin, Score
from ..statistics.bootstrap import Estimate, ResampledDifference
from ..tasks.metric import MetricSpec


@dataclass(frozen=True)
class Evaluated:
    """Results of one model.

    Args:
        name: name of the run.
        target: argument that it was opened by.
        parameters: number of the model's parameters.
        img_size: side of its images.
        frame: "image" if metrics are in the original images' pixels; None for other tasks and earlier versions' models.
        metrics: metrics by name.
        classes: per-class scores; empty if images have several right classes, and for other tasks.
        reliability: confidence bins; empty for other tasks.
        sections: the task's sections of the page.
    """

    name: str
    target: str
    parameters: int
    img_size: int
    frame: str | None
    metrics: dict[str, Estimate]
    classes: list[Score] = field(default_factory=list)
    reliability: list[Bin] = field(default_factory=list)
    sections: tuple[Section, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Example:
    """An example image under a condition, for the page."""

    title: str
    pixels: Any  # H, W, C uint8


@dataclass(frozen=True)
class Findings:
    """Results of several runs on the same images.

    Args:
        runs: runs by name, in order; the first is the reference.
        differences: differences of the other runs' metrics from the reference's.
        data: name of the dataset.
        samples: number of samples.
        fingerprint: fingerprint of the dataset.
        settings: settings of the evaluation: seed, limit, attacks, resamples.
        task: name of the task.
        primary: the metric that is computed under every condition.
        specs: specifications of the main metrics by name.
        notes: remarks for the reader.
        seconds: duration.
        examples: example images under each condition.
        page: path of the page, if written.
    """

    runs: dict[str, Evaluated]
    differences: list[ResampledDifference]
    data: str
    samples: int
    fingerprint: str
    settings: dict[str, Any]
    task: str
    primary: MetricSpec
    specs: dict[str, MetricSpec]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    examples: tuple[Example, ...] = field(default=(), repr=False)
    page: Path | None = None

    @property
    def reference(self) -> str:
        """Name of the first run."""
        return next(iter(self.runs))

    def run(self, name: str | None = None) -> Evaluated:
        """Return a run by name; default: the first."""
        if name is not None and name not in self.runs:
            raise KeyError(f"no run {name!r}; runs: {', '.join(self.runs)}")
        return self.runs[name or self.reference]

    def metrics(self, name: str | None = None) -> dict[str, float]:
        """Return a run's metrics, such as `top1` and `robust.mean_corruption_top1`; default: the first run's."""
        return {key: found.value for key, found in self.run(name).metrics.items()}

    def difference(self, name: str, metric: str | None = None) -> ResampledDifference:
        """Return the difference of a run's metric, by default the primary one, from the reference's."""
        metric = metric or self.primary.name
        for found in self.differences:
            if found.run == name and found.metric == metric:
                return found
        raise KeyError(f"no difference in {metric!r} between {name!r} and {self.reference!r} was computed")
