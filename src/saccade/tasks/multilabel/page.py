"""What the page of a run with several labels shows: every label by itself, and the worst images."""

from ...report.markup import Html, shorten, tag
from ...report.page import Section, paragraph
from ...report.rows import Interval
from ...wording import count_of
from ..page import Page, Shown, bootstrap, output_section, worst_section
from .metrics import average_precision


class MultilabelPage(Page):
    """Sections on labels."""

    note = (
        "A label is said from a threshold on that is its own. F1 is told for thresholds that were chosen on the other "
        "half of the validation samples; what answers use from now on was chosen on all of them."
    )

    @classmethod
    def sections(cls, shown: Shown) -> list[Section]:
        """Return the labels, and the images with the highest loss."""
        kept = shown.predictions
        if "share" not in kept:
            return []
        return [_label_section(shown), worst_section(shown, kept["loss"], _caption)]


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
        ["Label", "There", "Average precision", "Threshold", "Said", "Of these right", "Of those there found"],
        title="Label by label",
        caption="Every label by itself, at its threshold",
        measure="Average precision",
        remark="Validation samples that have it",
    )


def _caption(shown: Shown, index: int) -> list[Html]:
    """Return what a sample has and what was said of it."""
    shares, labels, limits = (shown.predictions[name] for name in ("share", "label", "threshold"))
    has = [name for name, there in zip(shown.outputs, labels[index], strict=True) if there]
    said = [name for name, share, limit in zip(shown.outputs, shares[index], limits, strict=True) if share >= limit]
    return [
        paragraph("true: ", tag("strong", shorten(", ".join(has) or "no label", 200))),
        paragraph("answered: ", tag("strong", shorten(", ".join(said) or "no label", 200))),
    ]
