"""Parts of an evaluation's page: formatted numbers, and the sections on occluded and corrupted images."""

from collections.abc import Sequence
from dataclasses import replace

from ..report.chart import line_chart
from ..report.image import encode_image
from ..report.markup import Html, join, shorten, tag
from ..report.page import Section, fold, grid, paragraph, table
from ..statistics.bootstrap import Estimate, ResampledDifference
from ..tasks.metric import MetricSpec
from .corruptions import CORRUPTIONS, SEVERITIES
from .findings import Findings
from .robust import CENTRE, DROPPED, PERTURBATIONS, PIECES, mean_name

MAX_NAME = 60  # most characters of a run's or class' name


def cell(found: Estimate | None, spec: MetricSpec) -> Html:
    """Return a table cell with a metric and its interval, and a bar for percentages."""
    if found is None:
        return Html("")
    return number_cell(spec.show(found.value), interval_text(found, spec), share=found.value if spec.share else None)


def number_table(
    result: Findings,
    what: str,
    rows: Sequence[tuple[str, str, MetricSpec]],
    *,
    caption: str,
    more: Sequence[Sequence[str]] = (),
) -> Html:
    """Return a table with a column for each run.

    Args:
        what: heading of the first column.
        rows: name, metric and specification of each row.
        more: further rows of cells.
    """
    cells = [[name, *(cell(run.metrics.get(key), spec) for run in result.runs.values())] for name, key, spec in rows]
    head = [what, *(shorten(name, MAX_NAME) for name in result.runs)]
    return table(head, [*cells, *more], caption=caption, numeric=range(1, len(head)), wide=True)


def interval_text(found: Estimate, spec: MetricSpec) -> str:
    """Return the ends of a metric's interval, without unit."""
    bare = replace(spec, unit="")
    return f"{bare.show(found.low)} to {bare.show(found.high)}"


def number_cell(value: str, interval: str, *, share: float | None = None) -> Html:
    """Return a bar, the value in bold and its interval."""
    bar = None
    if share is not None:
        bar = tag("span", class_="meter", style=f"--to: {100 * min(max(share, 0.0), 1.0):.1f}%", aria_hidden="true")
    text = join(tag("b", value), " ", tag("span", interval, class_="remark", style="white-space: nowrap"))
    return text if bar is None else join(bar, tag("span", text, class_="number"))


def change(value: float, spec: MetricSpec) -> str:
    """Format a difference, in percentage points for percentages."""
    if spec.share:
        return f"{100 * value:+.1f} points".replace("-", "\u2212")
    return f"{value:+.4g}".replace("-", "\u2212") + (f" {spec.unit}" if spec.unit else "")


def change_interval(found: ResampledDifference, spec: MetricSpec) -> str:
    """Return the ends of a difference's interval."""
    bare = replace(spec, unit="")
    return f"{change(found.low, bare)} to {change(found.high, bare)}"


def is_sure(low: float, high: float) -> bool:
    """Whether an interval excludes zero."""
    return not low <= 0 <= high


def corruption_section(result: Findings) -> Section:
    """Return the section on corruptions."""
    spec, mean = result.primary, mean_name(result.primary.name)
    shown = result.specs[mean]
    present = [name for name in CORRUPTIONS if f"corruption.{name}" in result.run().metrics]
    rows = [(name.replace("_", " "), f"corruption.{name}", shown) for name in present]
    rows.append((tag("strong", "all"), mean, shown))
    numbers = number_table(result, "Mean over severities", rows, caption=f"{spec.title} with its 95% interval")
    charts = [
        _levels(result, [f"corruption.{name}.{s}" for s in SEVERITIES], SEVERITIES, name.replace("_", " "), "severity")
        for name in present
    ]
    return Section(
        "corruptions",
        "Corruptions",
        join(
            paragraph(
                f"{spec.title} on corrupted images: five severities of each kind; every run sees the same draws. In "
                "the charts, severity 0 is the original image."
            ),
            numbers,
            _gallery(result),
            fold(f"{spec.title} by severity, a chart for each kind", grid(*charts)),
        ),
    )


def occlusion_section(result: Findings) -> Section:
    """Return the section on occlusions."""
    charts = [
        _levels(result, [f"centre_occlusion.{s:g}" for s in CENTRE], CENTRE, "centre occlusion", "share of the area"),
        _levels(result, [f"patch_drop.{s:g}" for s in DROPPED], DROPPED, "patch drop", "share of the patches"),
    ]
    shuffled = [f"patch_shuffle.{p}" for p in PIECES]
    if any(key in result.run().metrics for key in shuffled):
        charts.append(_levels(result, shuffled, PIECES, "patch shuffle", "pieces along a side", start=1.0))
    about = (
        f"Parts blacked out, or put in random order. The first point of each line is the clean {result.primary.words}."
    )
    return Section("occlusions", "Occlusion and shuffling", join(paragraph(about), grid(*charts)))


def noise_section(result: Findings) -> Section:
    """Return the section on light noise and blur."""
    about = (
        f"{result.primary.title} under the perturbations of Context Broadcasting's table 9, the mean of five draws of "
        "the noise; sigma in 255ths for noise and in pixels for blur."
    )
    caption = f"{result.primary.title} with its 95% interval over images"
    rows = [(one.title, f"noise.{one.name}", result.primary) for one in PERTURBATIONS]
    numbers = number_table(result, "Perturbation", rows, caption=caption)
    return Section("noise", "Noise and blur", join(paragraph(about), numbers))


def _gallery(result: Findings) -> Html | None:
    if not result.examples:
        return None
    items = [
        tag(
            "li",
            tag("div", encode_image(example.pixels, alt=f"the image under {example.title}"), class_="frame"),
            paragraph(example.title),
        )
        for example in result.examples
    ]
    return join(paragraph("One image under each condition, at a middle level:"), tag("ol", *items, class_="pictures"))


def _levels(
    result: Findings, keys: Sequence[str], levels: Sequence[float], title: str, x_label: str, *, start: float = 0.0
) -> Html:
    """Return a chart of the primary metric by level; the clean value is at `start`."""
    series, bands = {}, {}
    for run in result.runs.values():
        points = [(start, run.metrics[result.primary.name])]
        points += [(float(v), run.metrics[key]) for key, v in zip(keys, levels, strict=True) if key in run.metrics]
        name = shorten(run.name, 40)
        series[name] = [(x, found.value) for x, found in points]
        bands[name] = [(x, found.low, found.high) for x, found in points]
    return line_chart(
        series,
        title=title,
        x_label=x_label,
        y_label=result.primary.words,
        bands=bands if len(series) <= 2 else {},
        zero=result.primary.share,
        percent=result.primary.share,
        x_percent="share" in x_label,
    )
