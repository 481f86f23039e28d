"""Sections of an evaluation's page on occluded, corrupted and attacked pictures."""

from collections.abc import Sequence

from ..report.chart import line_chart
from ..report.markup import Html, join, shorten, tag
from ..report.page import Section, fold, grid, paragraph, table
from ..report.picture import encode_picture
from ..report.rows import Interval, interval_chart
from .corruptions import CORRUPTIONS, SEVERITIES
from .occlusions import CENTRE, DROPPED, PIECES
from .page_numbers import NAME, attack_names, cell, metric_title
from .result import Evaluation
from .robust import MEAN


def corruption_section(result: Evaluation) -> Section:
    """Return the accuracy under each corruption."""
    present = [name for name in CORRUPTIONS if f"corruption.{name}" in result.run().metrics]
    rows = [
        [
            name.replace("_", " "),
            *(cell(run.metrics.get(f"corruption.{name}"), "top1") for run in result.runs.values()),
        ]
        for name in present
    ]
    rows.append([tag("strong", "all of them"), *(cell(run.metrics.get(MEAN), MEAN) for run in result.runs.values())])
    charts = [
        _levels(result, [f"corruption.{name}.{s}" for s in SEVERITIES], SEVERITIES, name.replace("_", " "), "severity")
        for name in present
    ]
    return Section(
        "corruptions",
        "Corruptions",
        join(
            paragraph(
                "Accuracy on corrupted pictures: five severities of each kind; every run sees the same draws. In the "
                "charts, severity 0 is the picture as it is."
            ),
            table(
                ["Mean over severities", *(shorten(name, NAME) for name in result.runs)],
                rows,
                caption="Accuracy with its 95% interval",
                numeric=range(1, len(result.runs) + 1),
            ),
            _gallery(result),
            fold("Accuracy by severity, a chart for each kind", grid(*charts)),
        ),
    )


def occlusion_section(result: Evaluation) -> Section:
    """Return the accuracy with parts missing or out of place."""
    charts = [
        _levels(result, [f"centre_occlusion.{s:g}" for s in CENTRE], CENTRE, "centre occlusion", "share of the area"),
        _levels(result, [f"patch_drop.{s:g}" for s in DROPPED], DROPPED, "patch drop", "share of the patches"),
        _levels(
            result, [f"patch_shuffle.{p}" for p in PIECES], PIECES, "patch shuffle", "pieces along a side", start=1.0
        ),
    ]
    about = "Parts made black, or put in random order. The first point of each line is the clean accuracy."
    return Section("occlusions", "Occlusion and shuffling", join(paragraph(about), grid(*charts)))


def attack_section(result: Evaluation) -> Section | None:
    """Return the accuracy under attack; None if there was none."""
    attack = result.settings["attack"]
    if not attack:
        return None
    rows = []
    for name in ["top1", *attack_names(result)]:
        for run in result.runs.values():
            found = run.metrics[name]
            whose = f", {shorten(run.name, 40)}" if len(result.runs) > 1 else ""
            rows.append(Interval(f"{metric_title(name)}{whose}", found.low, found.value, found.high))
    starts = f"{attack['restarts']} start{'' if attack['restarts'] == 1 else 's'}"
    steps = f"{attack['steps']} step{'' if attack['steps'] == 1 else 's'}"
    about = (
        "Each value of a picture may change by epsilon. FGSM moves once along the gradient's sign; PGD takes "
        f"{steps} of {attack['step']:g} epsilon from {starts}. What counts is the "
        "worst point found for each picture, so PGD is never above FGSM."
    )
    chart = interval_chart(
        rows,
        title="Accuracy under attack",
        x_label="Accuracy",
        name_label="Attack",
        value_label="Accuracy, 95% interval",
        zero=None,
        bars=True,
        percent=True,
        x_range=(0, 1),
    )
    return Section("attacks", "Attacks", join(paragraph(about), chart))


def _gallery(result: Evaluation) -> Html | None:
    if not result.examples:
        return None
    items = [
        tag(
            "li",
            tag("div", encode_picture(example.pixels, alt=f"the picture under {example.title}"), class_="frame"),
            paragraph(example.title),
        )
        for example in result.examples
    ]
    return join(paragraph("One picture under each condition, at a middle level:"), tag("ol", *items, class_="pictures"))


def _levels(
    result: Evaluation, keys: Sequence[str], levels: Sequence[float], title: str, x_label: str, *, start: float = 0.0
) -> Html:
    """Return a chart of accuracy by level, from the clean one at `start` on."""
    series, bands = {}, {}
    for run in result.runs.values():
        points = [(start, run.metrics["top1"])]
        points += [(float(v), run.metrics[key]) for key, v in zip(keys, levels, strict=True) if key in run.metrics]
        name = shorten(run.name, 40)
        series[name] = [(x, found.value) for x, found in points]
        bands[name] = [(x, found.low, found.high) for x, found in points]
    return line_chart(
        series,
        title=title,
        x_label=x_label,
        y_label="accuracy",
        bands=bands if len(series) <= 2 else {},
        zero=True,
        percent=True,
        x_percent="share" in x_label,
    )
