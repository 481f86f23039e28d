"""Evaluation of segmenters and detectors: metrics, also under light noise and blur."""

import math

import numpy as np

from ..data.source import Source
from ..report.markup import Html
from ..report.page import Section
from ..statistics.bootstrap import Resampled, average
from ..tasks.page import Shown
from ..training.validate import predict_shown
from .judge import CLEAN, Judge
from .opening import EvaluatedModel
from .robust import PERTURBATIONS, Condition, perturbations

MOVES = ("patch_shuffle", "corruption.elastic", "corruption.zoom_blur")  # these move pixels away from their mask


class MaskJudge(Judge):
    """Evaluates one segmenter."""

    def __init__(self, model: EvaluatedModel) -> None:
        super().__init__(model)
        self.repeats: dict[str, list[float]] = {}  # primary metric for each draw of the noise

    @classmethod
    def conditions(cls) -> list[Condition]:
        """Return light noise and blur, with five draws each."""
        return perturbations()

    @classmethod
    def takes(cls, condition: Condition) -> bool:
        """Exclude conditions that move pixels, since masks are not moved."""
        return not condition.key.startswith(MOVES)

    def numbers(self, *, seed: int, resamples: int) -> dict[str, Resampled]:
        """Return every metric, and the means over the draws of noise."""
        found = super().numbers(seed=seed, resamples=resamples)
        for one in PERTURBATIONS:
            parts = [found[f"noise.{one.name}.{n}"] for n in range(one.repeats) if f"noise.{one.name}.{n}" in found]
            if parts:
                found[f"noise.{one.name}"] = average(parts)
            if parts and one.drawn:
                self.repeats[one.title] = [part.value for part in parts]
        return found

    def notes(self) -> list[str]:
        """Return notes on the variation over draws of the noise, as Student's interval."""
        from scipy.special import stdtrit  # slow to import

        notes = []
        for title, values in self.repeats.items():
            half = float(stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(len(values)))
            mean = self.primary.show(float(np.mean(values)))
            notes.append(f"{self.model.name}, {title}: {mean}, ±{100 * half:.2f} points over {len(values)} draws")
        return notes


class ObjectJudge(MaskJudge):
    """Evaluates one detector; conditions do not move objects, as for masks."""

    resamples = 400  # average precision processes all predictions for each resample

    def sections(self, source: Source) -> list[Section]:
        """Return the sections of a run's page: images, errors, curves, classes, sizes."""
        metrics, spec, task = self.metrics[CLEAN], self.model.spec, self.model.loaded.task
        kept = predict_shown(
            self.model.task, metrics, source, lambda batch: self.model.answer(batch, batch["image"])[0]
        )
        shown = Shown(
            model=Html(""),
            data="",
            summary={},
            records=(),
            outputs=spec.outputs,
            metrics=task.metrics.metric_specs(spec),
            primary=task.metrics.primary_of(spec),
            scores={name: value.numpy() for name, value in metrics.scores().items()},
            predictions={name: value.numpy() for name, value in kept.items()},
            source=source,
        )
        return task.presenter(spec).sections(shown)
