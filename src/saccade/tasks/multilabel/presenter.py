"""Presenter of multi-label classification: predicted labels; per-label results and worst images of a run."""

import numpy as np

from ...report.markup import Html, shorten, tag
from ...report.page import Section, paragraph
from ...report.rows import Interval
from ...support.wording import count_of
from ..answer import Answer
from ..page import Shown, bootstrap, output_section, worst_section
from ..presenter import Presenter
from .metrics import average_precision


class MultilabelPresenter(Presenter):
    """Presents labels."""

    outputs_key = "labels"
    note = (
        "Each label has its own threshold. F1 is measured with thresholds chosen on the other half of the validation "
        "samples; the thresholds used for predictions were chosen on all of them."
    )

    def sections(self, shown: Shown) -> list[Section]:
        """Return sections on labels and the images of highest loss."""
        kept = shown.predictions
        if "share" not in kept:
            return []
        return [_label_section(shown), worst_section(shown, kept["loss"], _caption)]

    def describe(self, row: np.ndarray, *, top: int = 5) -> Answer:
        """Return predicted labels, and the most probable ones with probabilities."""
        limits = self.spec.extra.get("thresholds") or [0.5] * len(self.spec.outputs)
        order = np.argsort(-row, kind="stable")
        said = [self.spec.outputs[i] for i in order if row[i] >= limits[i]]
        shown = order[: max(top, len(said))]
        rows = tuple((self.spec.outputs[i], f"{row[i]:.1%}", float(row[i])) for i in shown)
        labels = [
            {
                "label": self.spec.outputs[i],
                "probability": float(row[i]),
                "share": float(row[i]),  # the key in earlier versions
                "threshold": limits[i],
                "said": bool(row[i] >= limits[i]),
            }
            for i in shown
        ]
        record = {"answer": said, "labels": labels, "probabilities": row.tolist(), "shares": row.tolist()}
        return Answer(", ".join(said) or "no label", rows, record, said=tuple(said))

    def table_head(self, *, top: int = 5) -> list[str]:
        """Return columns for predicted labels and the probability of each label."""
        return ["labels", *self.spec.outputs]

    def table_rows(self, answer: Answer, *, top: int = 5) -> list[list[str | float]]:
        """Return an answer's row."""
        return [["|".join(answer.record["answer"]), *answer.record["shares"]]]


def _label_section(shown: Shown) -> Section:
    shares, labels, limits = (shown.predictions[name] for name in ("share", "label", "threshold"))
    rows, chart = [], []
    for column, name in enumerate(shown.outputs):
        share, label = shares[:, column], labels[:, column]
        positives = int(label.sum())
        said = share >= limits[column]
        hits = int((said & (label > 0)).sum())
        limit, count = f"{limits[column]:.2f}", f"{int(said.sum()):,}"
        if not positives:
            rows.append((2.0, [shorten(name, 80), "0", "none", limit, count, "", ""]))
            continue
        precision = average_precision(share, label)
        low, high = bootstrap(average_precision, share, label)
        cells = [shorten(name, 80), f"{positives:,}", f"{precision:.1%}", limit, count]
        right = f"{hits / said.sum():.1%}" if said.any() else "none"
        rows.append((precision, [*cells, right, f"{hits / positives:.1%}"]))
        chart.append(Interval(name, low, precision, high, count_of(positives, "sample")))
    return output_section(
        rows,
        chart,
        ["Label", "Positives", "Average precision", "Threshold", "Predicted", "Precision", "Recall"],
        title="Label by label",
        caption="Results by label, at its threshold",
        measure="Average precision",
        remark="Validation samples with the label",
    )


def _caption(shown: Shown, index: int) -> list[Html]:
    """Return a sample's labels and predictions as text."""
    shares, labels, limits = (shown.predictions[name] for name in ("share", "label", "threshold"))
    has = [name for name, there in zip(shown.outputs, labels[index], strict=True) if there]
    said = [name for name, share, limit in zip(shown.outputs, shares[index], limits, strict=True) if share >= limit]
    return [
        paragraph("true: ", tag("strong", shorten(", ".join(has) or "no label", 200))),
        paragraph("answered: ", tag("strong", shorten(", ".join(said) or "no label", 200))),
    ]
