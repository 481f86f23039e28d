"""What the answers of segmenters and detectors come to: metrics, and how much light noise and blur take of them."""

import math

import numpy as np

from ..data.source import Source
from ..report.markup import Html
from ..report.page import Section
from ..statistics.bootstrap import Resampled, average
from ..tasks.page import Shown
from .judge import CLEAN, Judge
from .opening import EvaluatedModel
from .robust import PERTURBATIONS, Condition, perturbations

MOVES = ("patch_shuffle", "corruption.elastic", "corruption.zoom_blur")  # pixels away from where their mask has them


class MaskJudge(Judge):
    """Measures one segmenter."""

    def __init__(self, model: EvaluatedModel) -> None:
        super().__init__(model)
        self.repeats: dict[str, list[float]] = {}  # the primary metric under each draw of a noise

    @classmethod
    def conditions(cls) -> list[Condition]:
        """Return light noise and blur, five draws of each."""
        return perturbations()

    @classmethod
    def takes(cls, condition: Condition) -> bool:
        """Leave out what moves pixels, since masks stay where they are."""
        return not condition.key.startswith(MOVES)

    def numbers(self, *, seed: int, resamples: int) -> dict[str, Resampled]:
        """Return every number, and the means over the draws of noise."""
        found = super().numbers(seed=seed, resamples=resamples)
        for one in PERTURBATIONS:
            parts = [found[f"noise.{one.name}.{n}"] for n in range(one.repeats) if f"noise.{one.name}.{n}" in found]
            if parts:
                found[f"noise.{one.name}"] = average(parts)
            if parts and one.drawn:
                self.repeats[one.title] = [part.value for part in parts]
        return found

    def notes(self) -> list[str]:
        """Return how far draws of the noise alone move the number, as Student's interval over them."""
        from scipy.special import stdtrit  # scipy takes a moment to import

        notes = []
        for title, values in self.repeats.items():
            half = float(stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(len(values)))
            mean = self.primary.show(float(np.mean(values)))
            notes.append(f"{self.model.name}, {title}: {mean}, ±{100 * half:.2f} points over {len(values)} draws")
        return notes


class ObjectJudge(MaskJudge):
    """Measures one detector; what is done to images leaves objects where they are, as for masks."""

    resamples = 400  # average precision reads every answer again for each

    def sections(self, source: Source) -> list[Section]:
        """Return what the page of a run shows: images with truth beside answer, errors, curves, classes, sizes."""
        metrics, spec, task = self.metrics[CLEAN], self.model.spec, self.model.loaded.task
        shown = Shown(
            model=Html(""),
            data="",
            summary={},
            records=(),
            outputs=spec.outputs,
            metrics=task.metrics.metric_specs(spec),
            primary=task.metrics.primary_of(spec),
            scores={name: value.numpy() for name, value in metrics.scores().items()},
            predictions={name: value.numpy() for name, value in metrics.predictions().items()},
            source=source,
        )
        return task.presenter(spec).sections(shown)
