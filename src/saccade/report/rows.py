"""Bar and interval charts as tables, legible at any width."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .axes import number, span, tick_labels, ticks, widen
from .markup import Html, breakable, shorten, tag

TICKS = 4  # most ticks, for narrow windows
STRIP = 22  # height of a row's drawing
INSET = 3.0  # margin on both sides, in percent of the width


class Interval(NamedTuple):
    """A mean with its interval."""

    name: str
    low: float
    mean: float
    high: float
    remark: str = ""


def interval_chart(
    rows: Sequence[Interval],
    *,
    title: str,
    x_label: str,
    zero: float | None = 0.0,
    bars: bool = False,
    percent: bool = False,
    x_range: tuple[float, float] | None = None,
    name_label: str = "Name",
    value_label: str = "Mean and interval",
    remark_label: str = "Remark",
) -> Html:
    """Return a table whose rows show a mean and its interval over one axis.

    Args:
        x_label: label of the axis.
        zero: position of a reference line, if any.
        bars: draw a bar from zero to the mean.
        percent: values are fractions.
        x_range: range of the axis; default: round values around the rows.
        name_label: heading of the names.
        value_label: heading of the numbers.
        remark_label: heading of the remarks, if any.
    """
    values = [value for row in rows for value in (row.low, row.mean, row.high)]
    low, high = x_range or widen(*span(values, include=[] if zero is None else [zero]), most=TICKS)
    body = []
    for row in rows:
        drawing = strip(row.low, row.mean, row.high, x_range=(low, high), zero=zero, bar=bars)
        ends = f"{number(row.low, percent=percent)} to {number(row.high, percent=percent)}"
        numbers = [tag("b", number(row.mean, percent=percent)), " ", tag("span", ends, class_="remark")]
        remark = tag("td", row.remark, class_="remark") if any(r.remark for r in rows) else None
        cells = tag("td", drawing, class_="strip"), tag("td", *numbers, class_="num"), remark
        body.append(tag("tr", tag("th", breakable(shorten(row.name, 80)), scope="row"), *cells))
    rest = 2 if any(row.remark for row in rows) else 1
    axis = tag("tr", tag("td"), tag("td", _axis(low, high, percent=percent), class_="strip"), tag("td", colspan=rest))
    names = [name_label, x_label, value_label, *([remark_label] if rest == 2 else [])]
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in names)))
    foot = tag("tfoot", axis, aria_hidden="true")
    whole = tag("table", tag("caption", title), head, tag("tbody", *body), foot, class_="rows")
    return tag("div", whole, class_="scroll", tabindex="0", role="group", aria_label=title)


def share_chart(rows: Sequence[Interval], *, title: str, measure: str, **labels: Any) -> Html:
    """Return bars of fractions with intervals.

    Args:
        measure: name of the fractions, such as "Accuracy".
        labels: `name_label` and `remark_label` of `interval_chart`.
    """
    axes: dict[str, Any] = {"x_label": measure, "value_label": f"{measure}, 95% interval", "x_range": (0, 1)}
    return interval_chart(rows, title=title, zero=None, bars=True, percent=True, **axes, **labels)


def strip(
    low: float,
    mean: float,
    high: float,
    *,
    x_range: tuple[float, float],
    zero: float | None = None,
    bar: bool = False,
) -> Html:
    """Return the drawing of one row, as wide as its cell.

    Args:
        x_range: range of the axis.
        zero: position of the reference line, and start of the bar.
        bar: draw a bar from zero, or the axis' lower end, to the mean.
    """
    middle = STRIP / 2
    parts = []
    if zero is not None:
        at = _share(zero, x_range)
        parts.append(tag("line", x1=at, x2=at, y1=0, y2=STRIP, class_="zero"))
    if bar and math.isfinite(mean):
        begin, end = sorted((_place(x_range[0] if zero is None else zero, x_range), _place(mean, x_range)))
        width = f"{end - begin:.2f}%"
        parts.append(tag("rect", x=f"{begin:.2f}%", width=width, y=4, height=STRIP - 8, class_="bar"))
    if math.isfinite(low) and math.isfinite(high):
        ends = {"x1": _share(low, x_range), "x2": _share(high, x_range)}
        parts.append(tag("line", **ends, y1=middle, y2=middle, class_="whisker"))
        for x in ends.values():
            parts.append(tag("line", x1=x, x2=x, y1=middle - 4, y2=middle + 4, class_="whisker"))
    if math.isfinite(mean) and not bar:
        parts.append(tag("circle", cx=_share(mean, x_range), cy=middle, r=4.5, class_="mark s1"))
    return tag("svg", *parts, height=STRIP, aria_hidden="true", class_="row")


def _axis(low: float, high: float, *, percent: bool) -> Html:
    values = ticks(low, high, most=TICKS)
    parts = [tag("line", x1=_share(low, (low, high)), x2=_share(high, (low, high)), y1=1, y2=1, class_="axis")]
    kept = values.index(0) % 2 if 0 in values else 0  # keep the label 0 in narrow windows
    for place, (value, text) in enumerate(zip(values, tick_labels(values, percent=percent), strict=True)):
        at = _share(value, (low, high))
        parts.append(tag("line", x1=at, x2=at, y1=1, y2=6, class_="axis"))
        spare = "spare" if len(values) > 3 and place % 2 != kept else None
        parts.append(tag("text", text, x=at, y=19, text_anchor="middle", class_=spare))
    return tag("svg", *parts, height=STRIP, class_="row")


def _place(value: float, x_range: tuple[float, float]) -> float:
    low, high = x_range
    share = min(max((value - low) / (high - low), 0.0), 1.0)
    return INSET + share * (100 - 2 * INSET)


def _share(value: float, x_range: tuple[float, float]) -> str:
    return f"{_place(value, x_range):.2f}%"
