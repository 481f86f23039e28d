"""Metrics: records of single samples, and how they are combined."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..data.spec import InputSpec

PLACE, GROUP = "place", "group"  # columns of score files: the sample's index, and its group, if any


@dataclass(frozen=True)
class MetricSpec:
    """Specification of a metric.

    Args:
        name: name in files, flags and Python.
        words: name for pages, in lower case: "accuracy".
        larger_is_better: whether higher is better.
        share: whether it is a fraction, shown in percent, with differences in percentage points.
        unit: unit of other metrics, such as "years".
        chance: chance level; None if unknown.
        statistic: maps all samples' records, N, ..., to the metric; None: their mean. It must be smooth, such as ratios
            and F-scores, since intervals use the jackknife.
        by_group: mean over groups of each group's mean, such as accuracy averaged over classes.
        source: column of its records; default: its name.
    """

    name: str
    words: str
    larger_is_better: bool = True
    share: bool = False
    unit: str = ""
    chance: float | None = None
    statistic: Callable[[np.ndarray], float] | None = None
    by_group: bool = False
    source: str | None = None

    @property
    def column(self) -> str:
        """Name of the column of its records."""
        return self.source or self.name

    @property
    def title(self) -> str:
        """The words, capitalised."""
        return self.words[:1].upper() + self.words[1:]

    def combine(self, columns: Mapping[str, Any]) -> float:
        """Compute the metric of all samples."""
        records = np.asarray(columns[self.column])
        if self.statistic is not None:
            return float(self.statistic(records))
        if self.by_group:
            groups = np.asarray(columns[GROUP])
            return float(np.mean([records[groups == group].mean() for group in np.unique(groups)]))
        return float(records.astype(np.float64).mean())

    def show(self, value: float) -> str:
        """Format a value."""
        if not np.isfinite(value):
            return "none"
        if self.share:
            return f"{100 * value:.2f}%"
        return f"{value:.4g}{f' {self.unit}' if self.unit else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Return the specification as JSON values."""
        found = {name: getattr(self, name) for name in ("name", "words", "larger_is_better", "share", "unit", "chance")}
        kind = "statistic" if self.statistic is not None else "by_group" if self.by_group else "mean"
        return {**found, "combine": kind, "column": self.column}


class Metrics:
    """Collects measurements over batches and processes.

    Args:
        spec: the model's inputs and outputs, if known.

    Attributes:
        primary: name of the primary metric.
        specs: specifications of all metrics.
    """

    primary: ClassVar[str] = "loss"

    def __init__(self, spec: InputSpec | None) -> None:
        self.spec = spec
        self.specs = () if spec is None else tuple(self.metric_specs(spec))
        self.parts: list[dict[str, Tensor]] = []
        self.arrived: torch.cuda.Event | None = None  # completion of the last copy to the CPU
        self.joined: dict[str, Tensor] | None = None

    @classmethod
    def metric_specs(cls, spec: InputSpec) -> tuple[MetricSpec, ...]:
        """Return the specifications of all metrics."""
        raise NotImplementedError

    @classmethod
    def primary_of(cls, spec: InputSpec) -> str:
        """Return the name of the primary metric."""
        return cls.primary

    @classmethod
    def metric(cls, name: str, spec: InputSpec) -> MetricSpec | None:
        """Return a metric's specification by name, if it exists."""
        return next((one for one in cls.metric_specs(spec) if one.name == name), None)

    @classmethod
    def primary_metric(cls, spec: InputSpec) -> MetricSpec:
        """Return the specification of the primary metric."""
        found = cls.metric(cls.primary_of(spec), spec)
        if found is None:
            raise ValueError(
                f"the primary metric {cls.primary_of(spec)!r} of the task {spec.task} is not one of its metrics"
            )
        return found

    def measure(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the measurements of each sample, B, ... by name.

        Args:
            answers: result of `Task.answer`.
            batch: batch with targets.
        """
        raise NotImplementedError

    def update(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> None:
        """Add the answers of a batch; copies from a GPU overlap with the next batch."""
        found = {**self.measure(answers, batch), PLACE: batch[PLACE]}
        gpu = next((value.device for value in found.values() if value.is_cuda), None)
        if gpu is not None and self.stays(found):
            self.parts.append(found)
            return
        self.parts.append({name: value.to("cpu", non_blocking=gpu is not None) for name, value in found.items()})
        self.arrived = None if gpu is None else torch.cuda.current_stream(gpu).record_event()

    def stays(self, measurements: Mapping[str, Tensor]) -> bool:
        """Whether measurements stay on the GPU until they are combined."""
        return False

    def state(self) -> dict[str, Tensor]:
        """Return this process' measurements on the CPU; empty without samples."""
        if self.arrived is not None:
            self.arrived.synchronize()
        names = self.parts[0] if self.parts else {}
        return {name: torch.cat([part[name].cpu() for part in self.parts]) for name in names}

    def join(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Combine the measurements of all processes, sorted by index."""
        found = [state for state in states if state]
        if not found:
            raise ValueError("no validation sample can be read; `saccade data check` lists the problems")
        whole = {name: torch.cat([state[name] for state in found]) for name in found[0]}
        order = whole[PLACE].argsort()
        self.joined = {name: value[order] for name, value in whole.items()}

    @property
    def columns(self) -> dict[str, Tensor]:
        """All measurements on the CPU, sorted by index."""
        if self.joined is None:
            self.join([self.state()])
        assert self.joined is not None
        return self.joined

    def __len__(self) -> int:
        return len(self.columns[PLACE])

    def scores(self) -> dict[str, Tensor]:
        """Return a column of records for each metric, N, ..., and `group` if samples have groups."""
        return {name: self.columns[name] for name in dict.fromkeys(spec.column for spec in self.specs)}

    def calibrate(self) -> None:
        """Store in the spec what decoding needs from validation, such as thresholds."""

    def compute(self) -> dict[str, float]:
        """Return all metrics by name."""
        scores = {name: value.numpy() for name, value in self.scores().items()}
        return {spec.name: spec.combine(scores) for spec in self.specs}

    def predictions(self) -> dict[str, Tensor]:
        """Return further predictions for pages: N, ... by name."""
        return {}
