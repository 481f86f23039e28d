"""Presenter of text classification: classes and worst texts of a run."""

import numpy as np

from ...report.markup import join, shorten, tag
from ...report.page import Section, paragraph, table
from ..classification.presenter import ClassPresenter
from ..metric import PLACE, MetricSpec
from ..page import Shown
from .data import TextSource

TEXTS = 30  # most texts shown
CHARS = 400  # most characters of each


class TextPresenter(ClassPresenter):
    """Presents classes of texts."""

    def remark(self, shown: Shown, spec: MetricSpec) -> str | None:
        """Return the interval over texts of metrics with a statistic."""
        ends, usual = shown.interval(spec), super().remark(shown, spec)
        if ends is None:
            return usual
        return f"95% interval over texts {ends[0]:.3f} to {ends[1]:.3f}; chance: {spec.chance:g}"

    def sections(self, shown: Shown) -> list[Section]:
        """Return sections on classes and the worst texts."""
        if "label" not in shown.predictions:
            return []
        return [_classes(shown), _worst(shown)]


def _classes(shown: Shown) -> Section:
    labels, answers = shown.predictions["label"], shown.predictions["prediction"]
    rows = []
    for number, name in enumerate(shown.outputs):
        there, said = labels == number, answers == number
        hits = int((there & said).sum())
        shares = [_share(hits, there.sum()), _share(hits, said.sum())]
        rows.append([shorten(name, 80), f"{there.sum():,}", f"{said.sum():,}", *shares])
    head = ["Class", "Texts", "Predicted", "Recall", "Precision"]
    numbers = table(head, rows, caption="Validation texts", numeric=range(1, len(head)))
    return Section("classes", "Class by class", numbers)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none"


def _worst(shown: Shown) -> Section:
    title, source = "The worst texts", shown.source
    if not isinstance(source, TextSource) or not shown.same_samples:
        message = "The validation texts were not available when this page was written."
        return Section("texts", title, paragraph(message, class_="note"))
    losses, places = shown.predictions["loss"], shown.predictions[PLACE]
    items = []
    for index in np.argsort(-np.nan_to_num(losses, nan=np.inf), kind="stable")[:TEXTS]:
        said, label = (shown.outputs[int(shown.predictions[name][index])] for name in ("prediction", "label"))
        text = " / ".join(source.text(int(places[index])))
        sure = f"{shown.predictions['confidence'][index]:.0%}"
        items.append([shorten(text, CHARS), shorten(label, 60), tag("strong", f"{shorten(said, 60)}, {sure}")])
    about = (
        "The validation texts with the highest loss. Wrong labels often appear here, so check the labels before "
        "blaming the model."
    )
    listed = table(["Text", "Label", "Answer"], items, caption="Highest loss first")
    return Section("texts", title, join(paragraph(about), listed))
