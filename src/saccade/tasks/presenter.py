"""The role Presenter: formats answers as text, tables, records and drawings, and report sections."""

from typing import Any, ClassVar

import numpy as np

from ..data.spec import InputSpec
from ..report.markup import Html, join, shorten, tag
from ..report.page import Section, paragraph
from .answer import Answer
from .metric import MetricSpec
from .numbers import number_sections
from .page import MAX_NAME, Shown


class Presenter:
    """Presents answers; the default is for one number per output.

    Args:
        spec: the model's inputs and outputs.

    Attributes:
        outputs_key: JSON key of its output names, besides "outputs", such as "classes".
        masks, boxes: whether answers are masks, or objects with boxes.
        note: remark on the metrics at the top of a report.
    """

    outputs_key: ClassVar[str] = "outputs"
    masks: ClassVar[bool] = False
    boxes: ClassVar[bool] = False
    note: ClassVar[str] = ""

    def __init__(self, spec: InputSpec) -> None:
        self.spec = spec

    # One answer

    def same(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return which answers of two models to the same samples agree, B bool."""
        return np.array([self.describe(a).text == self.describe(b).text for a, b in zip(first, second, strict=True)])

    def describe(self, row: np.ndarray, *, top: int = 5) -> Answer:
        """Return the answer for one sample's result of `read_output`, with at most `top` rows."""
        values = {name: float(f"{value:.6g}") for name, value in zip(self.spec.outputs, row, strict=True)}
        rows = tuple((name, f"{value:.4g}", None) for name, value in values.items())
        text = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        return Answer(text, rows, {"answer": text, "values": values})

    def table_head(self, *, top: int = 5) -> list[str]:
        """Return the columns of a table of answers, between name and problem."""
        return list(self.spec.outputs)

    def table_rows(self, answer: Answer, *, top: int = 5) -> list[list[str | float]]:
        """Return an answer's table rows: one, or one for each object."""
        return [[answer.record["values"][name] for name in self.spec.outputs]]

    def paint(self, pixels: np.ndarray, answer: Answer) -> np.ndarray:
        """Draw an answer on an image of any size, H, W, 3 uint8."""
        return pixels

    def line_record(self, answer: Answer) -> dict[str, Any]:
        """Return an answer's fields in JSON lines."""
        return {name: value for name, value in answer.record.items() if name != "outputs"}

    def served_record(self, answer: Answer) -> dict[str, Any]:
        """Return an answer's fields in server responses, including drawings."""
        return answer.record

    # A report

    def sentence(self, shown: Shown) -> Html:
        """Return the summary sentence of the page."""
        spec, value = shown.metric(shown.primary), shown.value(shown.primary)
        if spec is None or value is None:
            return self.unfinished(shown)
        return join(
            shown.model,
            f", trained on {shorten(shown.data, MAX_NAME)}, reaches {spec.words} of ",
            tag("strong", spec.show(value)),
            f" on {shown.count:,} validation samples.",
        )

    def unfinished(self, shown: Shown) -> Html:
        """Return the summary sentence of a run without a result."""
        name = shorten(shown.data, MAX_NAME)
        message = f" was trained on {name}; the run has not finished, so there is no result yet."
        return join(shown.model, message)

    def facts(self, shown: Shown) -> list[tuple[str, str, str]]:
        """Return name, value and remark of the metrics at the top of the page."""
        found = []
        for spec in shown.metrics:
            value, remark = shown.value(spec.name), self.remark(shown, spec)
            if value is not None and remark is not None:
                found.append((spec.title, spec.show(value), remark))
        return found

    def remark(self, shown: Shown, spec: MetricSpec) -> str | None:
        """Return the remark on a metric; None leaves the metric out."""
        return f"chance: {spec.show(spec.chance)}" if spec.chance is not None else ""

    def about(self, shown: Shown) -> Html | None:
        """Return the remark on the metrics at the top of the page."""
        return paragraph(self.note, class_="note") if self.note and shown.summary else None

    def sections(self, shown: Shown) -> list[Section]:
        """Return the task's sections; by default those on numbers, if there are any."""
        return number_sections(shown)


class RankedPresenter(Presenter):
    """Presents answers with ranked probabilities."""

    def table_rows(self, answer: Answer, *, top: int = 5) -> list[list[str | float]]:
        """Return one row with the top parts and their probabilities."""
        cells: list[str | float] = [cell for name, _, share in answer.rows[:top] for cell in (name, share or 0.0)]
        return [cells + [""] * (len(self.table_head(top=top)) - len(cells))]
