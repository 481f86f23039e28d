"""What one model's answers come to, clean and under every condition, by the metrics of its task."""

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
    """Measures one model, of any task; a task with more to say derives its own.

    Attributes:
        evenly: how a limited number of samples is chosen, in words.
        attackable: whether there are attacks, which need to know what a wrong answer is.
        resamples: of the samples at most, where numbers take long.
    """

    evenly: ClassVar[str] = "evenly by target"
    attackable: ClassVar[bool] = False
    resamples: ClassVar[int] = 1_000_000

    def __init__(self, model: EvaluatedModel) -> None:
        self.model = model
        self.metrics: dict[str, Metrics] = {}

    # Before anything is asked

    @classmethod
    def check(cls, models: Sequence[EvaluatedModel], options: ClassOptions) -> None:
        """Refuse models that do not answer the same question, and options that mean nothing for their task."""
        first = models[0]
        if options.labels is not None or options.subset is not None:
            raise EvaluationError(
                f"labels or a subset of classes were given, and {first.name} was trained for the task "
                f"{first.spec.task}; they are for models that answer with a class: leave them out"
            )
        for other in models[1:]:
            if other.spec.outputs != first.spec.outputs:
                raise EvaluationError(
                    f"{first.name} answers with {abbreviate(first.spec.outputs)} and {other.name} with "
                    f"{abbreviate(other.spec.outputs)}; runs side by side answer the same question: evaluate them one "
                    "by one"
                )

    @classmethod
    def answerable(cls, source: Source, options: ClassOptions) -> np.ndarray:  # noqa: ARG003
        """Return the places of the samples that have a right answer."""
        return np.arange(len(source))

    @classmethod
    def prepare(cls, models: Sequence[EvaluatedModel], samples: EvaluatedSet, options: ClassOptions) -> list[Self]:  # noqa: ARG003
        """Return one for each model."""
        return [cls(model) for model in models]

    @classmethod
    def conditions(cls) -> list[Condition]:
        """Return what is done to images beside occlusions and corruptions."""
        return []

    @classmethod
    def takes(cls, condition: Condition) -> bool:  # noqa: ARG003
        """Tell whether targets stay right under an occlusion or corruption."""
        return True

    @classmethod
    def align(cls, samples: EvaluatedSet, models: Sequence[EvaluatedModel]) -> EvaluatedSet:
        """Return the samples with their targets in terms of the models' outputs."""
        return replace(samples, source=samples.source.aligned(models[0].spec.outputs))

    # While models are asked

    def take(self, key: str, batch: Batch, images: Tensor | None) -> None:
        """Ask the model about a batch's images under a condition.

        Args:
            key: of the condition; `CLEAN` for none.
            images: of the batch under that condition, uint8 B, C, H, W; None where samples have none.
        """
        if key not in self.metrics:
            self.metrics[key] = self.model.task.metrics(self.model.task.spec)
        with torch.no_grad():
            self.metrics[key].update(*self.model.answer(batch, images))

    def attack(self, batch: Batch, rng_keys: Sequence[int]) -> None:
        """Attack a batch's images; for those that are attackable."""

    def passes_back(self) -> float:
        """Return how many passes forward and back over all samples attacks may take at most."""
        return 0.0

    # Of what was asked

    @property
    def primary(self) -> MetricSpec:
        """The metric that is measured under every condition."""
        return self.model.loaded.task.metrics.primary_metric(self.model.spec)

    def specs(self) -> dict[str, MetricSpec]:
        """Return the numbers that come first, in their order, with their meanings."""
        found = {spec.name: spec for spec in self.model.loaded.task.metrics.metric_specs(self.model.spec)}
        first = {self.primary.name: self.primary}
        mean = replace(self.primary, name=mean_name(self.primary.name), words=f"{self.primary.words}, corrupted")
        return first | found | {mean.name: mean}

    def numbers(self, *, seed: int, resamples: int) -> dict[str, Resampled]:
        """Return every number, over all samples and over resamples of them."""
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
        """Return what else the result holds of this model, by the names of its fields."""
        return {}

    def sections(self, source: Source) -> list[Section]:  # noqa: ARG002
        """Return what else the page shows of this model's answers to samples."""
        return []

    def notes(self) -> list[str]:
        """Return remarks on what was found."""
        return []


def statistic_of(spec: MetricSpec, columns: Mapping[str, np.ndarray]) -> Statistic:
    """Return a metric that is no mean over samples as a statistic."""
    if spec.by_group:
        return group_mean(columns[spec.column], columns[GROUP])
    return record_statistic(columns[spec.column], lambda records: spec.combine({spec.column: records}))
