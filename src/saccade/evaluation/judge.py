"""Compute a task's metrics of one model, on clean images and under every condition."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ..data.feed import Batch
from ..data.source import Source
from ..data.split import abbreviate
from ..report.page import Section
from ..statistics.bootstrap import (
    Resampled,
    Statistic,
    fewer,
    group_mean,
    over_all,
    record_statistic,
    resample,
    resample_means,
)
from ..tasks.metric import GROUP, Metrics, MetricSpec
from .classes.options import ClassOptions
from .opening import EvaluatedModel, EvaluatedSet, EvaluationError
from .robust import Condition, add_means, mean_name

CLEAN = "clean"


class Judge:
    """Evaluates one model of any task; tasks with further metrics have a subclass.

    Attributes:
        evenly: how a limited number of samples is chosen, as text.
        attackable: whether attacks are supported.
        resamples: most resamples, where metrics are slow.
    """

    evenly: ClassVar[str] = "evenly by target"
    attackable: ClassVar[bool] = False
    resamples: ClassVar[int] = 1_000_000

    def __init__(self, model: EvaluatedModel) -> None:
        self.model = model
        self.metrics: dict[str, Metrics] = {}

    # Before the models run

    @classmethod
    def check(cls, models: Sequence[EvaluatedModel], options: ClassOptions) -> None:
        """Refuse models with different outputs or frames, and options that do not apply to their task."""
        first = models[0]
        if options.labels is not None or options.subset is not None:
            raise EvaluationError(
                f"labels and subsets of classes are for classifiers, but {first.name} was trained for the task "
                f"{first.spec.task}; remove them"
            )
        for other in models[1:]:
            if other.spec.outputs != first.spec.outputs:
                raise EvaluationError(
                    f"{first.name} predicts {abbreviate(first.spec.outputs)} and {other.name} predicts "
                    f"{abbreviate(other.spec.outputs)}; compared runs must have the same outputs: evaluate them one "
                    "by one"
                )
            if other.spec.own_frame != first.spec.own_frame:
                older, newer = (first, other) if other.spec.own_frame else (other, first)
                raise EvaluationError(
                    f"metrics of {older.name} count pixels of the model's square, as earlier versions did, and those "
                    f"of {newer.name} pixels of the original images; evaluate them one by one, or train "
                    f"{older.name} again"
                )

    @classmethod
    def answerable(cls, source: Source, options: ClassOptions) -> np.ndarray:  # noqa: ARG003
        """Return the indices of labelled samples."""
        return np.arange(len(source))

    @classmethod
    def prepare(cls, models: Sequence[EvaluatedModel], samples: EvaluatedSet, options: ClassOptions) -> list[Self]:  # noqa: ARG003
        """Return a judge for each model."""
        return [cls(model) for model in models]

    @classmethod
    def conditions(cls) -> list[Condition]:
        """Return further conditions besides occlusions and corruptions."""
        return []

    @classmethod
    def takes(cls, condition: Condition) -> bool:  # noqa: ARG003
        """Whether targets remain valid under an occlusion or corruption."""
        return True

    @classmethod
    def align(cls, samples: EvaluatedSet, models: Sequence[EvaluatedModel]) -> EvaluatedSet:
        """Return the samples with targets mapped to the models' outputs."""
        return replace(samples, source=samples.source.aligned(models[0].spec.outputs))

    # While the models run

    def take(self, key: str, batch: Batch, images: Tensor | None) -> None:
        """Run the model on a batch under a condition.

        Args:
            key: key of the condition; `CLEAN` for none.
            images: the images under that condition, uint8 B, C, H, W; None if samples have no images.
        """
        if key not in self.metrics:
            self.metrics[key] = self.model.task.metrics(self.model.task.spec)
        with torch.no_grad():
            self.metrics[key].update(*self.model.answer(batch, images))

    def attack(self, batch: Batch, rng_keys: Sequence[int]) -> None:
        """Attack a batch's images, if supported."""

    def passes_back(self) -> float:
        """Return the most forward and backward passes over all samples that attacks need."""
        return 0.0

    # After the models ran

    @property
    def primary(self) -> MetricSpec:
        """The metric that is computed under every condition."""
        return self.model.loaded.task.metrics.primary_metric(self.model.spec)

    def specs(self) -> dict[str, MetricSpec]:
        """Return the specifications of the main metrics, in order."""
        found = {spec.name: spec for spec in self.model.loaded.task.metrics.metric_specs(self.model.spec)}
        first = {self.primary.name: self.primary}
        mean = replace(self.primary, name=mean_name(self.primary.name), words=f"{self.primary.words}, corrupted")
        return first | found | {mean.name: mean}

    def numbers(self, *, seed: int, resamples: int) -> dict[str, Resampled]:
        """Return every metric, over all samples and over resamples."""
        wanted: dict[str, tuple[MetricSpec, dict[str, np.ndarray]]] = {}
        for key, metrics in self.metrics.items():
            columns = {name: value.numpy() for name, value in metrics.scores().items()}
            specs = {spec.name: spec for spec in metrics.specs} if key == CLEAN else {key: self.primary}
            wanted |= {name: (spec, columns) for name, spec in specs.items() if spec.column in columns}
        means: dict[str, np.ndarray] = {}
        quick: dict[str, Statistic] = {}
        slow: dict[str, Statistic] = {}
        for name, (spec, columns) in wanted.items():
            if spec.statistic is None and not spec.by_group:
                means[name] = columns[spec.column]
            else:
                (quick if spec.by_group else slow)[name] = statistic_of(spec, columns)
        shares = [name for name in means if wanted[name][0].share]
        counted = [name for name in shares if means[name].dtype in (np.uint8, np.bool_)]
        count = len(self.metrics[CLEAN])
        found = resample_means(
            means, quick, count=count, seed=seed, resamples=resamples, shares=shares, counted=counted
        )
        for condition in (False, True):
            some = {name: one for name, one in slow.items() if (name in self.metrics) is condition}
            drawn = resample(count, some, seed=seed, resamples=fewer(count, resamples, condition=condition))
            found |= {name: Resampled(value, drawn[name]) for name, value in over_all(some, count).items()}
        found = add_means(found, self.primary.name)
        return {name: found[name] for name in dict.fromkeys([*self.specs(), *found]) if name in found}

    def details(self) -> dict[str, Any]:
        """Return further fields of this model's result."""
        return {}

    def sections(self, source: Source) -> list[Section]:  # noqa: ARG002
        """Return further sections of the page on this model's predictions."""
        return []

    def notes(self) -> list[str]:
        """Return notes for the reader."""
        return []


def statistic_of(spec: MetricSpec, columns: Mapping[str, np.ndarray]) -> Statistic:
    """Return a metric that is not a mean over samples as a statistic."""
    if spec.by_group:
        return group_mean(columns[spec.column], columns[GROUP])
    return record_statistic(columns[spec.column], lambda records: spec.combine({spec.column: records}))
