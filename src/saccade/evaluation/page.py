"""The page of an evaluation: runs side by side, each number with what it may be."""

from ..report.chart import line_chart
from ..report.markup import Html, join, shorten, tag
from ..report.page import Section, fold, grid, paragraph, render_page, table
from ..report.rows import Interval, interval_chart
from ..report.tally import wilson
from .bootstrap import Difference
from .page_numbers import NAME, PLAIN, TITLES, attack_names, cell, metric_title, number_cell, points
from .page_robust import attack_section, corruption_section, occlusion_section
from .result import Evaluated, Evaluation
from .robust import MEAN

WORST = 20  # classes shown at once


def render(result: Evaluation) -> str:
    """Return an evaluation as one page that stands alone."""
    robust = bool(result.settings["robust"])
    found: list[Section | None] = [
        _difference_section(result),
        corruption_section(result) if robust else None,
        occlusion_section(result) if robust else None,
        attack_section(result) if robust else None,
        _calibration_section(result),
        _class_section(result),
        _method_section(result),
    ]
    names = ", ".join(shorten(name, NAME) for name in result.runs)
    return render_page(
        f"{names} on {shorten(result.data, 120)}",
        [section for section in found if section is not None],
        kind="Evaluation",
        lead=_lead(result),
        foot=f"Written by saccade; every number is in evaluation.json. Seed {result.settings['seed']}.",
    )


def _lead(result: Evaluation) -> Html:
    names = list(result.runs)
    metrics = [name for name in [*TITLES, *attack_names(result)] if name in result.run().metrics]
    rows = [
        [metric_title(metric), *(cell(result.runs[name].metrics.get(metric), metric) for name in names)]
        for metric in metrics
    ]
    rows.append(["Parameters", *(f"{run.parameters / 1e6:.2f} million" for run in result.runs.values())])
    notes = [tag("li", shorten(note, 400)) for note in result.notes]
    return join(
        paragraph(_summary(result), class_="lead"),
        table(
            ["Number", *(shorten(name, NAME) for name in names)],
            rows,
            caption=f"{result.pictures:,} pictures; with each number its 95% interval over pictures of this kind",
            numeric=range(1, len(names) + 1),
        ),
        tag("ul", *notes, class_="note") if notes else None,
    )


def _summary(result: Evaluation) -> str:
    first = result.run()
    top = first.metrics["top1"]
    told = f"{shorten(first.name, NAME)} is right in {top.value:.1%} of the pictures ({top.low:.1%} to {top.high:.1%})"
    if MEAN in first.metrics:
        told += f", and in {first.metrics[MEAN].value:.1%} of them corrupted"
    told += "."
    for name in list(result.runs)[1:]:
        found = result.difference(name)
        sure = "not more than chance gives" if found.low <= 0 <= found.high else "more than chance gives"
        told += f" {shorten(name, NAME)}: {points(found.value)}, {sure} ({points(found.low)} to {points(found.high)})."
    return told


def _difference_section(result: Evaluation) -> Section | None:
    others = list(result.runs)[1:]
    if not others:
        return None
    shown = [name for name in [*TITLES, *attack_names(result)] if name not in PLAIN]
    parts = [
        paragraph(
            f"Against {shorten(result.reference, NAME)}, over the same pictures. An interval that does not hold zero "
            "is more than the choice of pictures explains; another training of the same model may still differ. p is "
            "McNemar's exact test, not corrected for the number of lines."
        )
    ]
    for name in others:
        rows = [
            Interval(metric_title(found.metric), found.low, found.value, found.high, _counts(found))
            for metric in shown
            for found in result.differences
            if found.run == name and found.metric == metric
        ]
        parts.append(
            interval_chart(
                rows,
                title=f"{shorten(name, NAME)} minus {shorten(result.reference, NAME)}",
                x_label="Difference in percentage points",
                name_label="Number",
                value_label="Difference, 95% interval",
                remark_label="Right for one alone",
                percent=True,
            )
        )
    return Section("differences", "Differences", join(*parts))


def _calibration_section(result: Evaluation) -> Section:
    series = {
        shorten(run.name, 40): [(b.confidence, b.correct / b.pictures) for b in run.reliability]
        for run in result.runs.values()
    }
    bands = {
        shorten(run.name, 40): [(b.confidence, *wilson(b.correct, b.pictures)) for b in run.reliability]
        for run in result.runs.values()
    }
    chart = line_chart(
        series,
        title="Reliability: share of right answers by confidence",
        x_label="confidence",
        y_label="right answers",
        bands=bands if len(result.runs) <= 2 else {},
        guide=[(0, 0), (1, 1)],
        x_range=(0, 1),
        y_range=(0, 1),
        percent=True,
        x_percent=True,
    )
    tables = [
        table(
            ["Mean confidence", "Right", "Pictures"],
            [[f"{b.confidence:.1%}", f"{b.correct / b.pictures:.1%}", f"{b.pictures:,}"] for b in run.reliability],
            caption=f"{shorten(run.name, NAME)}: answers in bins of confidence",
            numeric=(0, 1, 2),
        )
        for run in result.runs.values()
    ]
    about = "The dashed line is as confident as right; below it a model is too sure. Shaded: 95% interval of a bin."
    body = grid(chart, tables[0]) if len(tables) == 1 else join(chart, fold("The numbers", grid(*tables)))
    return Section("calibration", "Calibration", join(paragraph(about), body))


def _class_section(result: Evaluation) -> Section | None:
    first = result.run()
    seen = sorted((s for s in first.classes if s.pictures), key=lambda s: (s.share, s.name))
    if not seen:
        return None
    by_name = {run.name: {s.name: s for s in run.classes} for run in result.runs.values()}

    def own(run: Evaluated, name: str) -> Html:
        score = by_name[run.name][name]
        low, high = score.interval
        return number_cell(f"{score.share:.1%}", f"{low:.0%} to {high:.0%}")

    rows = [
        [shorten(s.name, NAME), f"{s.pictures:,}", *(own(run, s.name) for run in result.runs.values())] for s in seen
    ]
    header = ["Class", "Pictures", *(shorten(name, NAME) for name in result.runs)]
    numeric = range(1, len(header))
    caption = "Accuracy by class with Wilson's 95% interval, the first run's worst first"
    shown = table(header, rows[:WORST], caption=caption, numeric=numeric)
    rest = rows[WORST:]
    more = (
        fold(f"{len(rest)} more classes", table(header, rest, caption="The others", numeric=numeric)) if rest else None
    )
    return Section("classes", "Accuracy by class", join(shown, more))


def _method_section(result: Evaluation) -> Section:
    settings = result.settings
    lines = [
        f"Intervals: 95% percentiles over {settings['resamples']:,} resamples of the pictures, the same ones for every "
        "run and number, so that differences are paired. Where all pictures agree, Wilson's interval.",
        "They speak about other pictures of the same kind, not about other trainings of the same model.",
        "ECE: mean distance of confidence from accuracy over 15 bins of equal width. Brier: squared distance of the "
        "shares from the right answer, 0 to 2. Both, and the log likelihood, are better when lower.",
        "Corruptions are drawn by seed and picture's name, in bytes; the kinds follow ImageNet-C, the code is its own.",
        f"Pictures: {result.data}, fingerprint {result.fingerprint[:12]}.",
    ]
    return Section("method", "How it was measured", tag("ul", *(tag("li", line) for line in lines)))


def _counts(found: Difference) -> str:
    if found.p_value is None:
        return ""
    p = f"p = {found.p_value:.3f}" if found.p_value >= 0.001 else "p < 0.001"
    return f"{found.gained:,} against {found.lost:,}, {p}"
