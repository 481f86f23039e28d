"""What a detector's answers come to: its metrics, and how much light noise and blur take of them."""

from ..data.source import Source
from ..report.markup import Html
from ..report.page import Section
from ..tasks.page import Shown
from .judge import CLEAN
from .masks import MaskJudge


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
            metrics=task.metric_specs(spec),
            primary=task.primary_of(spec),
            scores={name: value.numpy() for name, value in metrics.scores().items()},
            predictions={name: value.numpy() for name, value in metrics.predictions().items()},
            source=source,
        )
        return task.page.sections(shown)
