"""Heat maps with colours and numbers that are legible in light and dark mode."""

import math
from collections.abc import Sequence

import numpy as np

from .axes import number
from .markup import Html, join, shorten, tag

LEVELS = 10
RAMPS = {  # colours from 0 to 1
    "light": ("#ffffff", "#9ec9ee", "#2b7bc2", "#08306b"),
    "dark": ("#14181f", "#15446f", "#3b8fd9", "#d5ebff"),
}
LABEL = 16  # most characters of a row's or column's name


def heat_map(
    values: np.ndarray,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    row_label: str,
    column_label: str,
    texts: Sequence[Sequence[str]] | None = None,
    tips: Sequence[Sequence[str]] | None = None,
    alternative: str = "",
) -> Html:
    """Return a heat map.

    Args:
        values: values from 0 to 1, rows, columns; non-finite ones leave cells empty.
        row_label: label of the rows.
        column_label: label of the columns.
        texts: texts in cells, if any.
        tips: tooltips of cells; default: names and percent.
        alternative: alt text.
    """
    if values.shape != (len(rows), len(columns)):
        raise ValueError(
            f"heat_map got values of shape {values.shape} for {len(rows)} rows and {len(columns)} columns; the shape "
            "must be rows x columns"
        )
    side = 40 if len(columns) <= 12 else 30 if len(columns) <= 20 else 25
    left = 26 + 7.6 * max(min(len(name), LABEL) for name in rows)
    top = 30 + 5.4 * max(min(len(name), LABEL) for name in columns)
    parts = []
    for i, name in enumerate(rows):
        y = top + (i + 0.5) * side + 4
        parts.append(tag("text", shorten(name, LABEL), tag("title", name), x=left - 7, y=y, text_anchor="end"))
    for j, name in enumerate(columns):
        x = left + (j + 0.5) * side
        turn = f"rotate(-45 {x:.1f} {top - 8:.1f})"
        parts.append(tag("text", shorten(name, LABEL), tag("title", name), x=x, y=top - 8, transform=turn))
    middle = top + side * len(rows) / 2
    turn = f"rotate(-90 11 {middle:.1f})"
    parts.append(tag("text", row_label, x=11, y=middle, transform=turn, text_anchor="middle", class_="label"))
    parts.append(tag("text", column_label, x=0, y=12, class_="label"))
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            default = f"{rows[i]} → {columns[j]}: {number(float(value), percent=True)}"
            tip = tips[i][j] if tips is not None else default
            text = texts[i][j] if texts is not None else ""
            parts.append(_cell(left + j * side, top + i * side, side, float(value), text=text, tip=tip))
    width, height = left + side * len(columns) + 44, top + side * len(rows) + 6
    drawing = tag(
        "svg",
        join(*parts),
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        aria_label=f"{title}. {alternative}".strip(),
        class_="heat",
        style=f"max-width:{width:.0f}px;min-width:{0.75 * width:.0f}px",
    )
    scroll = tag("div", drawing, class_="scroll", tabindex="0", role="group", aria_label=title)
    return tag("figure", tag("figcaption", title), _key(), scroll, class_="wide")


def heat_css() -> str:
    """Return CSS of the cells' colours with legible text colours."""
    css = []
    for mode, rule in (("light", "{}"), ("dark", "@media screen and (prefers-color-scheme:dark){{{}}}")):
        levels = []
        for level in range(LEVELS + 1):
            fill = _colour(RAMPS[mode], level / LEVELS)
            ink = "#000000" if contrast(fill, "#000000") >= contrast(fill, "#ffffff") else "#ffffff"
            levels.append(f".h{level}{{fill:{fill};background:{fill}}}.t{level}{{fill:{ink}}}")
        css.append(rule.format("".join(levels)))
    return "\n".join(css)


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, #rrggbb, by WCAG 2."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _cell(x: float, y: float, side: int, value: float, *, text: str, tip: str) -> Html:
    level = _level(value)
    square = tag("rect", x=x + 0.5, y=y + 0.5, width=side - 1, height=side - 1, rx=2, class_=f"cell h{level}")
    words = None
    if text:
        style = f"t{level}{' small' if side < 30 else ''}"
        words = tag("text", text, x=x + side / 2, y=y + side / 2 + 4, text_anchor="middle", class_=style)
    return tag("g", tag("title", tip), square, words)


def _key() -> Html:
    """Return the colour legend."""
    ends = [(level / LEVELS) ** 2 for level in range(LEVELS + 1)]
    cells = [tag("i", class_=f"h{level}") for level in range(LEVELS + 1)]
    return tag("p", "0% ", tag("span", *cells, aria_hidden="true"), f" {ends[-1]:.0%}", class_="key")


def _level(value: float) -> int:
    """Return a colour's index, by square root, so that small values are visible beside a full diagonal."""
    if not math.isfinite(value) or value <= 0:
        return 0
    return min(math.ceil(LEVELS * math.sqrt(value) - 1e-9), LEVELS)


def _colour(stops: Sequence[str], share: float) -> str:
    place = share * (len(stops) - 1)
    index = min(int(place), len(stops) - 2)
    pairs = zip(_channels(stops[index]), _channels(stops[index + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - index)):02x}" for a, b in pairs)


def _luminance(colour: str) -> float:
    parts = [channel / 255 for channel in _channels(colour)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
