"""What an evaluation found."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..report.page import Section
from ..report.tally import Bin, Score
from ..statistics.bootstrap import Estimate, ResampledDifference
from ..tasks.metric import MetricSpec


@dataclass(frozen=True)
class Evaluated:
    """What one model did.

    Args:
        name: of the run.
        target: what it was opened by.
        parameters: of the model.
        img_size: side of its images.
        metrics: every number by its name.
        classes: right answers of each class; empty where an image may have several, and for other tasks.
        reliability: answers in bins of confidence; empty for other tasks.
        sections: what the task's page shows of its answers, for the page alone.
    """

    name: str
    target: str
    parameters: int
    img_size: int
    metrics: dict[str, Estimate]
    classes: list[Score] = field(default_factory=list)
    reliability: list[Bin] = field(default_factory=list)
    sections: tuple[Section, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Example:
    """An image under a condition, for the page alone."""

    title: str
    pixels: Any  # H, W, C uint8


@dataclass(frozen=True)
class Findings:
    """Runs side by side on the same images.

    Args:
        runs: by name, in the order given; the first is the reference.
        differences: of every number of the other runs from the reference's.
        data: name of the images.
        samples: how many were asked about.
        fingerprint: of the set they are from.
        settings: what decides the numbers: seed, limit, attacks, resamples.
        task: name of what the models answer.
        primary: the metric that is measured under every condition.
        specs: the numbers that come first, by name, with their meanings.
        notes: remarks for the reader.
        seconds: how long it took.
        examples: images under each condition.
        page: where `evaluate` wrote it; None if it did not.
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
        """Return a run by its name, the first if none is given."""
        if name is not None and name not in self.runs:
            raise KeyError(f"there is no run {name!r}; there are {', '.join(self.runs)}")
        return self.runs[name or self.reference]

    def metrics(self, name: str | None = None) -> dict[str, float]:
        """Return a run's numbers, such as `top1` and `robust.mean_corruption_top1`, the first run's by default."""
        return {key: found.value for key, found in self.run(name).metrics.items()}

    def difference(self, name: str, metric: str | None = None) -> ResampledDifference:
        """Return how much higher a number, the primary one by default, is for a run than for the reference."""
        metric = metric or self.primary.name
        for found in self.differences:
            if found.run == name and found.metric == metric:
                return found
        raise KeyError(f"there is no difference of {metric!r} between {name!r} and {self.reference!r}")
