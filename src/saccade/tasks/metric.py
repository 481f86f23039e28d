"""What is measured of answers: a column of numbers or records, one a sample, and how they become one number."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..data.spec import InputSpec

PLACE, GROUP = "place", "group"  # columns of every score file: the sample's place; the group it belongs to, if any


@dataclass(frozen=True)
class MetricSpec:
    """A number that answers are judged by.

    Args:
        name: in files, flags and Python.
        words: for people, in lower case: "accuracy".
        larger_is_better: which way is better.
        share: whether it lies from 0 to 1 and is told in percent, its differences in points.
        unit: of other numbers, such as "years"; empty for none.
        chance: what answering without looking would score; None if that is not known.
        statistic: makes one number of all samples' records, N, ...; None is their mean. It must be smooth, as ratios
            and F-scores are: intervals come from leaving samples out.
        by_group: the mean over groups of each group's mean, such as accuracy averaged over classes.
        source: the column that it is made of, if not the one of its own name.
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
        """Name of the column it is made of."""
        return self.source or self.name

    @property
    def title(self) -> str:
        """Its words at the beginning of a line; capitals inside stay."""
        return self.words[:1].upper() + self.words[1:]

    def combine(self, columns: Mapping[str, Any]) -> float:
        """Return the number of all samples."""
        records = np.asarray(columns[self.column])
        if self.statistic is not None:
            return float(self.statistic(records))
        if self.by_group:
            groups = np.asarray(columns[GROUP])
            return float(np.mean([records[groups == group].mean() for group in np.unique(groups)]))
        return float(records.astype(np.float64).mean())

    def show(self, value: float) -> str:
        """Return a value for people."""
        if not np.isfinite(value):
            return "none"
        if self.share:
            return f"{100 * value:.2f}%"
        return f"{value:.4g}{f' {self.unit}' if self.unit else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Return what a reader of a run's scores needs to know, as JSON holds it."""
        found = {name: getattr(self, name) for name in ("name", "words", "larger_is_better", "share", "unit", "chance")}
        kind = "statistic" if self.statistic is not None else "by_group" if self.by_group else "mean"
        return {**found, "combine": kind, "column": self.column}


class Metrics:
    """Collects what is measured of answers, batch by batch and over processes.

    Args:
        spec: what goes into the model and what comes out of it; None where a task is used without one.

    Attributes:
        primary: name of the metric that a run is judged by.
        specs: the numbers it gives, the primary one among them.
    """

    primary: ClassVar[str] = "loss"

    def __init__(self, spec: InputSpec | None) -> None:
        self.spec = spec
        self.specs = () if spec is None else tuple(self.metric_specs(spec))
        self.parts: list[dict[str, Tensor]] = []
        self.arrived: torch.cuda.Event | None = None  # when the last of them is on the CPU
        self.joined: dict[str, Tensor] | None = None

    @classmethod
    def metric_specs(cls, spec: InputSpec) -> tuple[MetricSpec, ...]:
        """Return the numbers that answers are judged by."""
        raise NotImplementedError

    @classmethod
    def primary_of(cls, spec: InputSpec) -> str:
        """Return the name of the metric that a run on such samples is judged by."""
        return cls.primary

    @classmethod
    def metric(cls, name: str, spec: InputSpec) -> MetricSpec | None:
        """Return a metric by its name; None if there is none."""
        return next((one for one in cls.metric_specs(spec) if one.name == name), None)

    @classmethod
    def primary_metric(cls, spec: InputSpec) -> MetricSpec:
        """Return the metric that a run on such samples is judged by."""
        found = cls.metric(cls.primary_of(spec), spec)
        if found is None:
            raise ValueError(
                f"the task {spec.task} is judged by {cls.primary_of(spec)!r}, which is none of its metrics"
            )
        return found

    def measure(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what is kept of each sample, B, ... by name.

        Args:
            answers: what `Task.answer` gave.
            batch: with the targets.
        """
        raise NotImplementedError

    def update(self, answers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> None:
        """Take the answers to a batch; a GPU hands them over while the next batch is asked about, or keeps them."""
        found = {**self.measure(answers, batch), PLACE: batch[PLACE]}
        gpu = next((value.device for value in found.values() if value.is_cuda), None)
        if gpu is not None and self.stays(found):
            self.parts.append(found)
            return
        self.parts.append({name: value.to("cpu", non_blocking=gpu is not None) for name, value in found.items()})
        self.arrived = None if gpu is None else torch.cuda.current_stream(gpu).record_event()

    def stays(self, found: Mapping[str, Tensor]) -> bool:
        """Whether what was measured of a batch stays on its GPU, because it is summed up there."""
        return False

    def state(self) -> dict[str, Tensor]:
        """Return all of this process's samples, on the CPU; empty where it had none."""
        if self.arrived is not None:
            self.arrived.synchronize()
        names = self.parts[0] if self.parts else {}
        return {name: torch.cat([part[name].cpu() for part in self.parts]) for name in names}

    def join(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Bring the samples of all processes together, in the order of their places."""
        found = [state for state in states if state]
        if not found:
            raise ValueError("no validation sample can be read; `saccade data check` names them")
        whole = {name: torch.cat([state[name] for state in found]) for name in found[0]}
        order = whole[PLACE].argsort()
        self.joined = {name: value[order] for name, value in whole.items()}

    @property
    def columns(self) -> dict[str, Tensor]:
        """All samples' measurements on the CPU, in the order of their places."""
        if self.joined is None:
            self.join([self.state()])
        assert self.joined is not None
        return self.joined

    def __len__(self) -> int:
        return len(self.columns[PLACE])

    def scores(self) -> dict[str, Tensor]:
        """Return a column for each metric's records, N, ..., and `group` where samples fall into groups."""
        return {name: self.columns[name] for name in dict.fromkeys(spec.column for spec in self.specs)}

    def settle(self) -> None:
        """Take from the validation answers of a finished run what reading answers needs, into the spec."""

    def compute(self) -> dict[str, float]:
        """Return every number by its name."""
        scores = {name: value.numpy() for name, value in self.scores().items()}
        return {spec.name: spec.combine(scores) for spec in self.specs}

    def predictions(self) -> dict[str, Tensor]:
        """Return what else is kept of the answers, for pages: N, ... by name."""
        return {}
