"""The role of a task that speaks to people: answers in words, tables, records and drawings, and sections of reports."""

from typing import Any, ClassVar

import numpy as np

from ..data.spec import InputSpec
from ..report.markup import Html, join, shorten, tag
from ..report.page import Section, paragraph
from .answer import Answer
from .metric import MetricSpec
from .numbers import number_sections
from .page import NAME, Shown


class Presenter:
    """Shows the answers of a model; without a class of its own, a task has one number for each output.

    Args:
        spec: what goes into the model and what comes out of it.

    Attributes:
        outputs_key: what programs know the names of its outputs by, beside "outputs", such as "classes".
        masks, boxes: whether its answers are masks, or objects with boxes.
        note: a remark on the numbers at the head of a report.
    """

    outputs_key: ClassVar[str] = "outputs"
    masks: ClassVar[bool] = False
    boxes: ClassVar[bool] = False
    note: ClassVar[str] = ""

    def __init__(self, spec: InputSpec) -> None:
        self.spec = spec

    # One answer

    def same(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return which rows of two answers to the same samples people would take for the same, B bool."""
        return np.array([self.describe(a).text == self.describe(b).text for a, b in zip(first, second, strict=True)])

    def describe(self, row: np.ndarray, *, top: int = 5) -> Answer:
        """Return what `read_output` gave for one sample in words and rows, `top` of them where there are many."""
        values = {name: float(f"{value:.6g}") for name, value in zip(self.spec.outputs, row, strict=True)}
        rows = tuple((name, f"{value:.4g}", None) for name, value in values.items())
        text = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        return Answer(text, rows, {"answer": text, "values": values})

    def table_head(self, *, top: int = 5) -> list[str]:
        """Return the columns of a table of answers, between the sample's name and what is wrong with it."""
        return list(self.spec.outputs)

    def table_rows(self, answer: Answer, *, top: int = 5) -> list[list[str | float]]:
        """Return an answer's rows in such a table, one unless it has parts of equal right."""
        return [[answer.record["values"][name] for name in self.spec.outputs]]

    def paint(self, pixels: np.ndarray, answer: Answer) -> np.ndarray:
        """Return an image of any size, H, W, 3 uint8, with an answer drawn on it."""
        return pixels

    def line_record(self, answer: Answer) -> dict[str, Any]:
        """Return an answer as a line of JSON holds it, beside the sample's name."""
        return {name: value for name, value in answer.record.items() if name != "outputs"}

    def served_record(self, answer: Answer) -> dict[str, Any]:
        """Return an answer as a server tells it, with what is drawn on the image."""
        return answer.record

    # A report

    def sentence(self, shown: Shown) -> Html:
        """Return what came out, for the head of the page."""
        spec, value = shown.metric(shown.primary), shown.value(shown.primary)
        if spec is None or value is None:
            return self.unfinished(shown)
        return join(
            shown.model,
            f", trained on {shorten(shown.data, NAME)}, reaches {spec.words} of ",
            tag("strong", spec.show(value)),
            f" on {shown.count:,} validation samples.",
        )

    def unfinished(self, shown: Shown) -> Html:
        """Return what is said of a run without a result."""
        message = (
            f" was trained on {shorten(shown.data, NAME)}; the run has not come to its end, so there is no result yet."
        )
        return join(shown.model, message)

    def facts(self, shown: Shown) -> list[tuple[str, str, str]]:
        """Return name, value and remark of the numbers at the head of the page."""
        found = []
        for spec in shown.metrics:
            value, remark = shown.value(spec.name), self.remark(shown, spec)
            if value is not None and remark is not None:
                found.append((spec.title, spec.show(value), remark))
        return found

    def remark(self, shown: Shown, spec: MetricSpec) -> str | None:
        """Return what is said beside a metric's number; None leaves the metric out."""
        return f"chance: {spec.show(spec.chance)}" if spec.chance is not None else ""

    def about(self, shown: Shown) -> Html | None:
        """Return the remark on the numbers at the head of the page."""
        return paragraph(self.note, class_="note") if self.note and shown.summary else None

    def sections(self, shown: Shown) -> list[Section]:
        """Return the task's own sections; of numbers and their truth, where they were kept, how near they are."""
        return number_sections(shown)


class RankedPresenter(Presenter):
    """Shows answers whose parts have shares, the largest first."""

    def table_rows(self, answer: Answer, *, top: int = 5) -> list[list[str | float]]:
        """Return one row: the likeliest parts, each with its share."""
        cells: list[str | float] = [cell for name, _, share in answer.rows[:top] for cell in (name, share or 0.0)]
        return [cells + [""] * (len(self.table_head(top=top)) - len(cells))]
