"""Line charts and scatter plots as SVG, coloured by the page's CSS."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .axes import Scale, number, span, tick_labels, ticks, widen
from .markup import Html, escape, join, shorten, tag

WIDTH, HEIGHT = 480, 280
TOP, RIGHT, BOTTOM = 30, 16, 44
SERIES = 6  # number of colours, dashes and marks
MARKED = 40  # most points of a series with marks
POINTED = 200  # most points of a series with tooltips
DRAWN = 1500  # most points of a series

Band = Sequence[tuple[float, float, float]]


class Point(NamedTuple):
    """A named point of a scatter plot."""

    x: float
    y: float
    label: str = ""


def line_chart(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    bands: Mapping[str, Band] | None = None,
    guide: Sequence[tuple[float, float]] = (),
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    zero: bool = False,
    percent: bool = False,
    x_percent: bool = False,
) -> Html:
    """Return a line chart.

    Args:
        series: points of each line, sorted by x; non-finite values leave gaps.
        bands: (x, low, high) of each line, drawn behind it in its colour.
        guide: points of a thin reference line, such as a diagonal.
        x_range: range of the x-axis; default: that of the points.
        y_range: range of the y-axis; default: round values around the points.
        zero: include 0 in the y-axis.
        percent: y values are fractions.
        x_percent: x values are fractions.
    """
    bands = bands or {}
    thin = {name: _thin(points) for name, points in series.items()}
    edges = [value for band in bands.values() for _, low, high in band for value in (low, high)] + [0.0] * zero
    places = [(x, y) for points in thin.values() for x, y in points]
    frame = _Frame.around(places, edges=edges, x_range=x_range, y_range=y_range, percent=percent, x_percent=x_percent)
    body = [tag("path", d=frame.path(guide), class_="guide")] if guide else []
    for index, name in enumerate(thin):
        if bands.get(name):
            body.append(tag("polygon", points=frame.band(bands[name]), class_=f"band {_style(index)}"))
    for index, (name, points) in enumerate(thin.items()):
        line = {"class_": f"line {_style(index)}", "data_name": shorten(name, 60), "data_points": _written(points)}
        body.append(tag("path", d=frame.path(points), **line))
        body.append(_marks(frame, index, name, points, x_label=x_label))
    texts = [_describe(name, points, frame, x_label=x_label) for name, points in thin.items()]
    alternative = f"{title}. Lines of {y_label} by {x_label}. {' '.join(texts)}"
    return _figure(title, frame, (x_label, y_label), join(*body), alternative, _legend(list(thin), lines=True))


def scatter(
    groups: Mapping[str, Sequence[Point]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    guide: Sequence[tuple[float, float]] = (),
    percent: bool = False,
) -> Html:
    """Return a scatter plot, with a colour and mark for each group.

    Args:
        groups: points of each group.
        guide: points of a thin reference line, such as a diagonal.
        percent: y values are fractions.
    """
    places = [(point.x, point.y) for points in groups.values() for point in points]
    frame = _Frame.around([*places, *guide], percent=percent, room=0.06)
    body, texts = [tag("path", d=frame.path(guide), class_="guide")] if guide else [], []
    taken = [(frame.x(x) - 6, frame.x(x) + 6, frame.y(y)) for x, y in places]
    for index, (name, points) in enumerate(groups.items()):
        for point in points:
            if not (math.isfinite(point.x) and math.isfinite(point.y)):
                continue
            what = f"{point.label or name}: {number(point.x)}, {number(point.y, percent=percent)}"
            x, y = frame.x(point.x), frame.y(point.y)
            body.append(_mark(index, x, y, size=4.5, tip=what))
            if point.label:
                body.append(_name(frame, shorten(point.label, 24), x, y, taken))
            texts.append(f"{what}.")
    alternative = f"{title}. Points of {y_label} by {x_label}. {' '.join(texts[:50])}"
    legend = _legend(list(groups), lines=False) if len(groups) > 1 else None
    return _figure(title, frame, (x_label, y_label), join(*body), alternative, legend)


def _name(frame: "_Frame", text: str, x: float, y: float, taken: list[tuple[float, float, float]]) -> Html:
    """Write a name beside its point, or a line above or below if that space is taken."""
    width = 7.4 * len(text)
    left = x + 9 + width > frame.x.end
    begin, end = (x - 9 - width, x - 9) if left else (x + 9, x + 9 + width)

    def free(at: float) -> bool:
        inside = frame.y.end + 8 < at < frame.y.start - 8  # not on an axis
        return inside and not any(begin < b and a < end and abs(at - other) < 13 for a, b, other in taken)

    at = next((y + step for step in (0, -16, 16, -32, 32) if free(y + step)), y)
    taken.append((begin, end, at))
    anchor = {"text_anchor": "end"} if left else {}
    return tag("text", text, x=x + (-9 if left else 9), y=at + 4, data_at=f"{x:.1f} {y:.1f}", **anchor)


class _Frame(NamedTuple):
    """The two scales of a chart and their ticks."""

    x: Scale
    y: Scale
    x_ticks: list[float]
    y_ticks: list[float]
    x_texts: list[str]
    y_texts: list[str]
    percent: bool
    x_percent: bool

    @classmethod
    def around(
        cls,
        places: Sequence[tuple[float, float]],
        *,
        edges: Sequence[float] = (),
        x_range: tuple[float, float] | None = None,
        y_range: tuple[float, float] | None = None,
        percent: bool = False,
        x_percent: bool = False,
        room: float = 0.0,
    ) -> "_Frame":
        xs = [x for x, _ in places if math.isfinite(x)]
        low, high = x_range or span(xs)
        whole = all(float(x).is_integer() for x in xs) and x_range is None
        if whole and len(set(xs)) < 2:
            low, high = (xs[0] - 0.5, xs[0] + 0.5) if xs else (0.5, 1.5)
        low, high = low - room * (high - low), high + room * (high - low)
        y_low, y_high = y_range or span((y for _, y in places), include=edges)
        values = [y for y in (*(y for _, y in places), *edges) if math.isfinite(y)]
        if y_range is None and room == 0 and values and min(values) >= 0:
            y_low = max(y_low, 0.0)  # nonnegative values have no negative range
        if y_range is None:
            y_low, y_high = widen(y_low - room * (y_high - y_low), y_high + room * (y_high - y_low))
        x_ticks, y_ticks = ticks(low, high, most=7, whole=whole), ticks(y_low, y_high)
        x_texts, y_texts = tick_labels(x_ticks, percent=x_percent), tick_labels(y_ticks, percent=percent)
        left = 14 + 7.4 * max((len(text) for text in y_texts), default=1)
        x = Scale(low, high, left, WIDTH - RIGHT)
        return cls(
            x, Scale(y_low, y_high, HEIGHT - BOTTOM, TOP), x_ticks, y_ticks, x_texts, y_texts, percent, x_percent
        )

    def draw(self, x_label: str, y_label: str) -> Html:
        left, right, bottom = self.x.start, self.x.end, self.y.start
        parts = []
        for value, text in zip(self.y_ticks, self.y_texts, strict=True):
            y = self.y(value)
            parts.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="rule"))
            parts.append(tag("text", text, x=left - 7, y=y + 4, text_anchor="end"))
        for value, text in zip(self.x_ticks, self.x_texts, strict=True):
            x = self.x(value)
            parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 5, class_="axis"))
            parts.append(tag("text", text, x=x, y=bottom + 19, text_anchor="middle"))
        return join(
            tag("g", *parts, class_="ticks"),
            tag("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"),
            tag("text", y_label, x=0, y=12, class_="label"),
            tag("text", x_label, x=(left + right) / 2, y=HEIGHT - 6, text_anchor="middle", class_="label"),
        )

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        words, pen = [], "M"
        for x, y in points:
            if not math.isfinite(y):
                pen = "M"
                continue
            words.append(f"{pen}{self.x(x):.1f} {self.y(y):.1f}")
            pen = "L"
        return "".join(words)

    def band(self, band: Band) -> str:
        sound = [(x, low, high) for x, low, high in band if math.isfinite(low) and math.isfinite(high)]
        places = [self.x(x) for x, _, _ in sound]
        if len(sound) == 1:  # a single interval needs some width
            places, sound = [places[0] - 5, places[0] + 5], sound * 2
        upper = [f"{x:.1f},{self.y(high):.1f}" for x, (_, _, high) in zip(places, sound, strict=True)]
        lower = [f"{x:.1f},{self.y(low):.1f}" for x, (_, low, _) in zip(places[::-1], sound[::-1], strict=True)]
        return " ".join(upper + lower)


def _marks(frame: _Frame, index: int, name: str, points: Sequence[tuple[float, float]], *, x_label: str) -> Html:
    if len(points) > POINTED:
        return Html()
    marks = []
    for x, y in points:
        if math.isfinite(y):
            tip = f"{name}, {x_label} {number(x, percent=frame.x_percent)}: {number(y, percent=frame.percent)}"
            seen = len(points) <= MARKED
            marks.append(_mark(index, frame.x(x), frame.y(y), size=3.2 if seen else 5, tip=tip, seen=seen))
    return join(*marks)


def _mark(index: int, x: float, y: float, *, size: float, tip: str = "", seen: bool = True) -> Html:
    """Draw a mark whose shape identifies a series without its colour."""
    shapes = [
        f"M{x - size:.1f} {y:.1f}a{size} {size} 0 1 0 {2 * size} 0a{size} {size} 0 1 0 {-2 * size} 0z",
        f"M{x - size * 0.9:.1f} {y - size * 0.9:.1f}h{size * 1.8:.1f}v{size * 1.8:.1f}h{-size * 1.8:.1f}z",
        f"M{x:.1f} {y - size * 1.2:.1f}l{size * 1.2:.1f} {size * 2:.1f}h{-size * 2.4:.1f}z",
        f"M{x:.1f} {y - size * 1.3:.1f}l{size * 1.3:.1f} {size * 1.3:.1f}l{-size * 1.3:.1f} {size * 1.3:.1f}"
        f"l{-size * 1.3:.1f} {-size * 1.3:.1f}z",
        f"M{x:.1f} {y + size * 1.2:.1f}l{size * 1.2:.1f} {-size * 2:.1f}h{-size * 2.4:.1f}z",
        f"M{x - size * 1.4:.1f} {y - size * 0.5:.1f}h{size * 2.8:.1f}v{size:.1f}h{-size * 2.8:.1f}z",
    ]
    return tag(
        "path",
        *([tag("title", tip)] if tip else []),
        d=shapes[(index + index // SERIES) % SERIES],
        class_=f"mark {_style(index)}" if seen else "unseen",
        data_at=f"{x:.1f} {y:.1f}" if tip else None,
    )


def _style(index: int) -> str:
    return f"s{index % SERIES + 1}"


def _legend(names: Sequence[str], *, lines: bool) -> Html | None:
    if len(names) < 2:
        return None
    items = []
    for index, name in enumerate(names):
        line = tag("path", d="M1 7H31", class_=f"line {_style(index)}") if lines else None
        swatch = tag("svg", line, _mark(index, 16.0, 7.0, size=3.6), viewBox="0 0 32 14", aria_hidden="true")
        items.append(tag("li", swatch, shorten(name, 60)))
    return tag("ul", *items, class_="legend")


def _figure(
    title: str, frame: _Frame, labels: tuple[str, str], body: Html, alternative: str, legend: Html | None
) -> Html:
    """Return a chart with its caption; chart.js reads scales and points from it."""
    scales = {
        f"data_{name}": " ".join(f"{end:.9g}" for end in scale) for name, scale in (("x", frame.x), ("y", frame.y))
    }
    drawing = tag(
        "svg",
        frame.draw(*labels),
        tag("g", body, class_="plot"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=alternative,
        class_="chart",
        data_label=labels[0],
        data_percent="x" * frame.x_percent + "y" * frame.percent,
        **scales,
    )
    return tag("figure", tag("figcaption", escape(title)), legend, drawing)


def _written(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.6g},{y:.6g}" if math.isfinite(y) else f"{x:.6g},NaN" for x, y in points)


def _describe(name: str, points: Sequence[tuple[float, float]], frame: _Frame, *, x_label: str) -> str:
    sound = [(x, y) for x, y in points if math.isfinite(y)]
    if not sound:
        return f"{name}: no values."
    (first_x, first), (last_x, last) = sound[0], sound[-1]
    low, high = min(sound, key=lambda p: p[1]), max(sound, key=lambda p: p[1])

    def say(y: float, x: float) -> str:
        return f"{number(y, percent=frame.percent)} at {x_label} {number(x, percent=frame.x_percent)}"

    ends = f"from {say(first, first_x)} to {say(last, last_x)}"
    return f"{name}: {ends}, lowest {say(low[1], low[0])}, highest {say(high[1], high[0])}."


def _thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Subsample a long series, keeping its last point."""
    every = -(-len(points) // DRAWN) or 1
    kept = list(points[::every])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]
