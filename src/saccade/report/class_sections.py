"""Report sections of classifiers: per-class accuracy, confusion, calibration."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..statistics.proportion import wilson
from .chart import line_chart
from .heat import heat_map
from .markup import Html, join, shorten
from .page import Section, fold, grid, paragraph, table
from .rows import Interval, share_chart
from .tally import Answered, Bin, Score, calibration, class_scores, confused_pairs, confusion

MANY = 40  # most classes shown unfolded
WORST, BEST = 20, 5
LISTED = 2000  # most classes listed
MAPPED = 30  # most classes of a confusion matrix
BESIDE = 12  # most classes of a matrix beside a table
MAX_NAME = 120  # most characters of a class' or file's name


def class_section(answered: Answered, classes: Sequence[str]) -> Section:
    """Return the section on per-class accuracy, worst first."""
    scores = class_scores(answered, classes)
    seen = sorted((score for score in scores if score.samples), key=lambda score: (score.share, score.name))
    absent = [score.name for score in scores if not score.samples]
    parts = [paragraph(_about_classes(seen), " The whiskers are 95% intervals over the images of a class.")]
    if len(seen) <= MANY:
        parts.append(class_chart(seen, title="Accuracy by class, worst first"))
    else:
        rest = seen[WORST:-BEST]
        shown = rest[:LISTED]
        text = f"The other {len(rest)} classes" if len(shown) == len(rest) else f"The {len(shown)} next worst classes"
        parts.append(class_chart(seen[:WORST], title=f"The {WORST} classes with the lowest accuracy"))
        parts.append(class_chart(seen[-BEST:], title=f"The {BEST} classes with the highest accuracy"))
        parts.append(fold(text, class_chart(shown, title=f"{text}, worst first")))
    if absent:
        names = ", ".join(shorten(name, 40) for name in absent[:20])
        more = f" and {len(absent) - 20} more" if len(absent) > 20 else ""
        parts.append(paragraph(f"Without validation images: {names}{more}.", class_="note"))
    return Section("classes", "Accuracy by class", join(*parts))


def confusion_section(answered: Answered, classes: Sequence[str]) -> Section:
    """Return the section on confusions."""
    wrong = int((~answered.correct).sum())
    if not wrong:
        return Section("confusion", "Confusions", paragraph("No image was misclassified."))
    if len(classes) > MAPPED:
        return Section("confusion", "Confusions", _pair_table(answered, classes, most=20))
    most = confused_pairs(answered, most=3)
    text = "; ".join(
        f"{shorten(classes[pair.true], 40)} predicted as {shorten(classes[pair.predicted], 40)}, {pair.samples:,} of "
        f"{pair.of:,}"
        for pair in most
    )
    drawing, pairs = _confusion_map(answered, classes, text), _pair_table(answered, classes, most=10)
    body = grid(drawing, pairs) if len(classes) <= BESIDE else join(drawing, pairs)
    return Section("confusion", "Confusions", join(paragraph(f"Most often: {text}."), body))


def calibration_section(answered: Answered) -> Section:
    """Return the section on calibration."""
    bins, error = calibration(answered)
    if not np.isfinite(answered.confidence).all():
        text = "Some predictions are not finite: training diverged. Lower optim.lr, or set optim.clip."
        return Section("calibration", "Confidence", paragraph(text))
    gap = float(answered.confidence.mean() - answered.correct.mean())
    text = (
        f"The model's mean confidence is {answered.confidence.mean():.1%} and it is right in "
        f"{answered.correct.mean():.1%} of the images"
    )
    leaning = "well calibrated on average"
    if abs(gap) > 0.02:
        leaning = "overconfident on average" if gap > 0 else "underconfident on average"
    about = paragraph(
        f"{text}: {leaning}. The expected calibration error is {error:.1%} (ten bins of confidence). Dashed: perfect "
        "calibration; shaded: 95% interval."
    )
    chart = reliability_chart({"answers": bins}, title="Share of right predictions by confidence")
    numbers = reliability_table(bins, caption="Predictions in bins of confidence")
    return Section("calibration", "Confidence", join(about, grid(chart, numbers)))


def reliability_chart(bins: Mapping[str, Sequence[Bin]], *, title: str) -> Html:
    """Return a reliability diagram of one or several models, with intervals for up to two."""
    bands = {
        name: [(one.confidence, *wilson(one.correct, one.samples)) for one in found] for name, found in bins.items()
    }
    return line_chart(
        {name: [(one.confidence, one.correct / one.samples) for one in found] for name, found in bins.items()},
        title=title,
        x_label="confidence",
        y_label="right predictions",
        bands=bands if len(bins) <= 2 else {},
        guide=[(0, 0), (1, 1)],
        x_range=(0, 1),
        y_range=(0, 1),
        percent=True,
        x_percent=True,
    )


def reliability_table(bins: Sequence[Bin], *, caption: str) -> Html:
    """Return a table of confidence bins and their accuracy."""
    rows = [[f"{one.confidence:.1%}", f"{one.correct / one.samples:.1%}", f"{one.samples:,}"] for one in bins]
    return table(["Mean confidence", "Right", "Images"], rows, caption=caption, numeric=(0, 1, 2))


def _about_classes(seen: Sequence[Score]) -> str:
    worst, best = seen[0], seen[-1]
    return (
        f"From {shorten(worst.name, 60)} ({worst.share:.1%} of {worst.samples:,}) to {shorten(best.name, 60)} "
        f"({best.share:.1%} of {best.samples:,}); the mean over {len(seen):,} classes is "
        f"{sum(score.share for score in seen) / len(seen):.1%}."
    )


def class_chart(scores: Sequence[Score], *, title: str, remark_label: str = "Right") -> Html:
    """Return a bar chart of per-class accuracy."""
    rows = [
        Interval(one.name, one.interval[0], one.share, one.interval[1], f"{one.correct:,} of {one.samples:,}")
        for one in scores
    ]
    return share_chart(rows, title=title, measure="Accuracy", name_label="Class", remark_label=remark_label)


def _confusion_map(answered: Answered, classes: Sequence[str], text: str) -> Html:
    counts = confusion(answered, len(classes))
    totals = counts.sum(1, keepdims=True)
    shares = counts / np.maximum(totals, 1)
    texts = [["" if not share else "<1" if share < 0.005 else f"{100 * share:.0f}" for share in row] for row in shares]
    tips = [
        [
            f"{true} → {answer}: {counts[i, j]:,} of {totals[i, 0]:,} ({shares[i, j]:.1%})"
            for j, answer in enumerate(classes)
        ]
        for i, true in enumerate(classes)
    ]
    return heat_map(
        shares,
        rows=classes,
        columns=classes,
        title="Predictions for each true class, in percent of its images",
        row_label="true class",
        column_label="predicted class",
        texts=texts,
        tips=tips,
        alternative=f"Right predictions are on the diagonal. Most confused: {text}.",
    )


def _pair_table(answered: Answered, classes: Sequence[str], *, most: int) -> Html:
    rows = []
    for pair in confused_pairs(answered, most=most):
        names = [shorten(classes[one], MAX_NAME) for one in (pair.true, pair.predicted)]
        rows.append([*names, f"{pair.samples:,} of {pair.of:,}", f"{pair.samples / pair.of:.1%}"])
    return table(
        ["True class", "Predicted", "Images", "Share"],
        rows,
        caption=f"The {len(rows)} pairs of classes confused most often",
        numeric=(2, 3),
    )
