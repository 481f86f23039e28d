"""The section of a comparison's report on what the arms cost."""

import math

from ..report.chart import Point, scatter
from ..report.markup import Html, join, shorten, tag
from ..report.page import Section, paragraph, table
from ..report.rows import Interval, interval_chart
from .budget import say_duration
from .findings import Cost, Findings
from .report_words import NAME, scaled, unit, words


def cost_section(result: Findings) -> Section:
    """Return what the arms cost beside what they gain, and what they reach at equal time."""
    head = ["Arm", "Parameters", "Multiply-adds", "ms a step", "Time of a step against the reference"]
    rows = [[shorten(name, NAME), *_cost(cost)] for name, cost in result.costs.items()]
    caption = "What each arm costs; multiply-adds are those of one picture, each two FLOPs"
    head += ["Trained for", "GPU memory"]
    kept = [column for column in range(len(head)) if any(row[column] for row in rows)]
    cells = [[row[column] for column in kept] for row in rows]
    numbers = table([head[column] for column in kept], cells, caption=caption, numeric=range(1, len(kept)))
    return Section("costs", "Cost against gain", join(_gain_chart(result), numbers, _equal_time(result)))


def _gain_chart(result: Findings) -> Html | None:
    places, d = [], None
    for name, judged in result.differences.items():
        ratio = result.costs[name].step_ratio if name in result.costs else None
        if ratio is not None and math.isfinite(ratio.ratio):
            d = judged.difference
            places.append(Point(ratio.ratio, scaled(d, d.mean), name))
    if d is None:
        return None
    corner = "Up and to the left" if d.larger_is_better else "Down and to the left"
    about = f"{corner} is best: more is gained at less cost. The reference stands at 1 and 0. The dots have intervals "
    chart = scatter(
        {"reference": [Point(1.0, 0.0, result.reference)], "arms": places},
        title="Gain by cost",
        x_label="seconds a step, times the reference",
        y_label=f"difference in {result.metric}{',' if unit(d) else ''}{unit(d)}",
    )
    return join(paragraph(about, "of their own, which the tables tell."), chart)


def _cost(cost: Cost) -> list[str]:
    ratio = cost.step_ratio
    return [
        "" if cost.parameters is None else f"{cost.parameters:,}",
        "" if cost.macs is None else f"{cost.macs / 1e6:,.1f} M",
        "" if cost.seconds_per_step is None else f"{1000 * cost.seconds_per_step:.1f}",
        "" if ratio is None else f"{ratio.ratio:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})",
        "" if cost.seconds is None else say_duration(cost.seconds),
        "" if cost.peak_memory is None else f"{cost.peak_memory / 2**20:,.0f} MiB",
    ]


def _equal_time(result: Findings) -> Html | None:
    rows, told, metric = [], "", words(result, result.primary)
    for name, cost in result.costs.items():
        d = cost.at_equal_time
        if d is not None and cost.equal_seconds is not None:
            told = unit(d)
            when = f"after {say_duration(cost.equal_seconds)}"
            rows.append(Interval(name, scaled(d, d.low), scaled(d, d.mean), scaled(d, d.high), when))
    if not rows:
        return None
    about = (
        f"An arm that takes longer a step has had more time. Here {metric} is read when each has trained equally long, "
        "by a straight line between epochs. The longer run is not at the end of its schedule there, so this "
        "understates what a schedule of that length would give. Intervals are over seeds alone."
    )
    told = f", in{told}" if told else ""
    chart = interval_chart(
        rows,
        title=f"Difference in {metric} from {shorten(result.reference, NAME)} at equal time{told}",
        x_label="Difference",
        name_label="Arm",
        value_label="Seen, and what it may be",
        remark_label="When",
    )
    return join(tag("h3", f"{metric[:1].upper()}{metric[1:]} at equal time"), paragraph(about), chart)
