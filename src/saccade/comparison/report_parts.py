"""Sections of a comparison's report that show evidence: intervals, curves, classes, pictures."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..data.source import Source
from ..report.chart import line_chart
from ..report.markup import Html, join, shorten, tag
from ..report.page import Section, fold, grid, paragraph, table
from ..report.picture import encode_picture
from ..report.rows import Interval, interval_chart
from .findings import ClassDifference, Disagreement, Findings
from .paired import Difference
from .report_words import NAME, better, bounded, nothing_found, scaled, score, show, smallest, unit, words

CLASSES = 12  # shown at once
ENDS = 5  # worst and best shown where there are more
FOLDED = 300  # classes in a fold
PICTURES = 6  # gains and losses of an arm, each
TOO_FEW = "with so few seeds or pictures it would miss even the largest difference that there can be"

Records = Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]]


def interval_section(result: Findings) -> Section:
    """Return every arm's difference with its interval, and the scores behind it."""
    rows, smaller, lost = [], [], []
    for name, judged in result.differences.items():
        d = judged.difference
        rows.append(Interval(name, scaled(d, judged.low), scaled(d, d.mean), scaled(d, judged.high), smallest(d)))
        if nothing_found(d):
            lost.append(name)
        elif abs(d.mean) < d.detectable:
            smaller.append(name)
    if not rows:
        told = "No arm could be compared with the reference."
        return Section("intervals", "The differences", join(paragraph(told, class_="note"), _scores(result)))
    d = next(iter(result.differences.values())).difference
    title = f"Difference in {result.metric} from {shorten(result.reference, NAME)}{' in' if unit(d) else ''}{unit(d)}"
    below, never = (", ".join(shorten(name, NAME) for name in names) for names in (smaller, lost))
    about = paragraph(
        f"The dot is what was seen, the line what the true difference may be ({d.level:.0%} interval, corrected for "
        f"the number of arms); the dashed line is no difference. {better(d).capitalize()} of it is better. Beside it: "
        "the smallest true difference that an experiment like this one finds four times out of five. "
        + (f"What was seen is smaller than that for {below}. " if below else "")
        + (f"For {never} it is nothing: {TOO_FEW}." if never else "")
    )
    chart = interval_chart(
        rows,
        title=title,
        x_label="Difference",
        name_label="Arm",
        value_label="Seen, and what it may be",
        remark_label="Smallest it would find",
    )
    return Section("intervals", "The differences", join(about, chart, _scores(result), _others(result)))


def _scores(result: Findings) -> Html:
    rows = []
    for arm in result.arms:
        judged = result.differences.get(arm.identical_to or arm.name)
        p = "" if judged is None else f"{judged.p_holm:.2g}"
        each = ", ".join(score(result, value) for value in arm.scores)
        rows.append([shorten(arm.name, NAME), score(result, arm.mean), f"{len(arm.seeds)}", each, p])
    caption = "Scores of every arm; p: how often chance alone would show so large a difference, corrected for all arms"
    head = ["Arm", f"Mean {result.metric}", "Seeds", "Each seed", "p (Holm)"]
    return table(head, rows, caption=caption, numeric=(1, 2, 4))


def _others(result: Findings) -> Html | None:
    rows = [
        [metric, shorten(name, NAME), f"{d.mean:+.4g}", _ends(result, metric, d), f"{d.p_value:.2g}"]
        for metric, arms in result.other.items()
        for name, d in arms.items()
    ]
    if not rows:
        return None
    caption = "Differences of other numbers; intervals over seeds alone, not corrected for how many there are"
    head = ["Number", "Arm", "Difference", "Interval", "p"]
    return fold("Other numbers", table(head, rows, caption=caption, numeric=(2, 3, 4)))


def _ends(result: Findings, metric: str, d: Difference) -> str:
    return f"{bounded(result, metric, d.low):+.4g} to {bounded(result, metric, d.high):+.4g}"


def curve_section(result: Findings, records: Records) -> Section:
    """Return how the arms learned, by epoch and by time."""
    distinct = [arm.name for arm in result.arms if arm.identical_to is None]
    found = {name: [list(one) for one in records.get(name, {}).values() if one] for name in distinct}
    charts = []
    for metric in dict.fromkeys([result.primary or result.metric, result.metric]):
        field, spec = f"val_{metric}", result.spec(metric)
        right = metric == result.primary and metric in result.binary
        label = "right answers" if right else words(result, metric)
        for x_label, x in (("epoch", _epochs), ("seconds of training", _seconds)):
            curves = {name: _curve(runs, field, x) for name, runs in found.items()}
            curves = {name: curve for name, curve in curves.items() if curve}
            if curves:
                title = f"{label[:1].upper()}{label[1:]} in validation, by {x_label}"
                percent = spec is not None and spec.share
                charts.append(_curve_chart(curves, title, x_label, label, percent=percent))
    if not charts:
        return Section("curves", "Learning curves", paragraph("The runs' curves were not at hand.", class_="note"))
    about = (
        "The line is the mean over seeds; the band reaches from the worst seed to the best. Bands that overlap "
        "decide nothing by themselves: verdicts compare the arms seed by seed, after the last epoch."
    )
    return Section("curves", "Learning curves", join(paragraph(about), grid(*charts)))


def _curve_chart(curves: Mapping[str, Sequence[Sequence[float]]], title: str, x: str, y: str, *, percent: bool) -> Html:
    return line_chart(
        {name: [(at, mean) for at, mean, _, _ in curve] for name, curve in curves.items()},
        bands={name: [(at, low, high) for at, _, low, high in curve] for name, curve in curves.items()},
        title=title,
        x_label=x,
        y_label=y,
        percent=percent,
    )


def _epochs(run: Sequence[Mapping[str, Any]]) -> list[float]:
    return [float(record["epoch"]) for record in run]


def _seconds(run: Sequence[Mapping[str, Any]]) -> list[float]:
    return np.cumsum([float(record.get("seconds") or 0.0) for record in run]).tolist()


def _curve(
    runs: Sequence[Sequence[Mapping[str, Any]]], field: str, x: Callable[[Sequence[Mapping[str, Any]]], list[float]]
) -> list[tuple[float, float, float, float]]:
    """Return x, mean, lowest and highest over seeds, of the epochs that all of them validated."""
    seeds = []
    for run in runs:
        pairs = zip(run, x(run), strict=True)
        seeds.append({r["epoch"]: (at, float(r[field])) for r, at in pairs if isinstance(r.get(field), int | float)})
    shared = sorted(set.intersection(*(set(seed) for seed in seeds))) if seeds else []
    curve = []
    for epoch in shared:
        at, values = zip(*(seed[epoch] for seed in seeds), strict=True)
        curve.append((sum(at) / len(at), sum(values) / len(values), min(values), max(values)))
    return curve


def class_section(result: Findings) -> Section | None:
    """Return each arm's differences class by class, the worst first."""
    parts = []
    for name, found in result.classes.items():
        rows = sorted(found, key=lambda row: row.difference.mean)
        if not rows:
            continue
        told = words(result, result.class_metric)
        told = f"{unit(rows[0].difference).strip()} of {told}" if unit(rows[0].difference) else told
        title = f"{shorten(name, NAME)} against {shorten(result.reference, NAME)}, {told}"
        parts.append(tag("h3", shorten(name, NAME)))
        if len(rows) <= CLASSES:
            parts.append(_class_chart(rows, f"{title}, worst first"))
            continue
        parts.append(_class_chart(rows[:ENDS], f"{title}: the {ENDS} that lose most"))
        parts.append(_class_chart(rows[-ENDS:], f"{title}: the {ENDS} that gain most"))
        rest = rows[ENDS:-ENDS]
        told = f"The other {len(rest)} classes" if len(rest) <= FOLDED else f"{FOLDED} of the other {len(rest)} classes"
        parts.append(fold(told, _class_chart(rest[:FOLDED], f"{title}: {told.lower()}")))
    if not parts:
        return None
    about = (
        "Each interval speaks of its class alone: with many classes some lie beside zero by luck. A class is marked "
        "clear if its difference stands after correction for the number of classes."
    )
    if any(row.difference.share for found in result.classes.values() for row in found):
        about += " Intervals end at 100 points, all that there can be: one that wide says nothing."
    return Section("classes", "Class by class", join(paragraph(about), *parts))


def _class_chart(rows: Sequence[ClassDifference], title: str) -> Html:
    drawn = []
    for row in rows:
        d = row.difference
        clear = "; clear" if row.p_holm < 1 - d.level else ""
        before, after = (f"{x:.1%}" if d.share else f"{x:.4g}" for x in (row.reference, row.arm))
        remark = f"{before} → {after} of {row.pictures:,}{clear}"
        drawn.append(Interval(row.name, scaled(d, d.low), scaled(d, d.mean), scaled(d, d.high), remark))
    return interval_chart(
        drawn,
        title=title,
        x_label="Difference",
        name_label="Class",
        value_label="Seen, and what it may be",
        remark_label="Reference → arm",
    )


def picture_section(result: Findings, source: Source | None) -> Section | None:
    """Return the pictures on which arms disagree.

    Args:
        result: of the comparison.
        source: the validation pictures; None where they cannot be had, and names alone are told.
    """
    parts, right = [], result.picture_metric in result.binary
    told = ("is right more often", "is right less often") if right else ("is better", "is worse")
    for name in result.disagreements:
        for way, some in zip(told, result.gains_and_losses(name), strict=True):
            if some:
                title = f"{shorten(name, NAME)} {way} than {shorten(result.reference, NAME)}"
                items = [_picture(result, name, one, source) for one in some[:PICTURES]]
                parts += [tag("h3", title), tag("ol", *items, class_="pictures")]
    if not parts:
        return None
    about = "The validation pictures with the largest differences, and "
    about += (
        "how many of the trainings get each right."
        if right
        else f"the {words(result, result.picture_metric)} of each, a mean of trainings."
    )
    return Section("pictures", "Pictures they disagree on", join(paragraph(about), *parts))


def _picture(result: Findings, name: str, one: Disagreement, source: Source | None) -> Html:
    pixels = None if source is None else _read(source, one)
    image = None if pixels is None else encode_picture(pixels, alt=f"{shorten(one.name, 120)}: {one.label}")
    return tag(
        "li",
        None if image is None else tag("div", image, class_="frame"),
        paragraph(tag("strong", shorten(one.label, NAME))),
        paragraph(f"{shorten(result.reference, NAME)}: {_scored(result, result.reference, one.reference)}"),
        paragraph(f"{shorten(name, NAME)}: {_scored(result, name, one.arm)}"),
        paragraph(shorten(one.name, 120), class_="name"),
    )


def _scored(result: Findings, name: str, mean: float) -> str:
    """Return how an arm did on a picture."""
    if result.picture_metric not in result.binary:
        return show(result, result.picture_metric, mean)
    seeds = len(result.arm(name).seeds)
    return f"right in {round(mean * seeds)} of {seeds}" if seeds else f"right in {mean:.0%}"


def _read(source: Source, one: Disagreement) -> np.ndarray | None:
    """Read a picture if it is still the one that was answered."""
    try:
        if source.name(one.place) != one.name or source.targets.describe(one.place) != one.label:
            return None
        return source.read(one.place)
    except (OSError, ValueError, IndexError):
        return None
