import math
import re

import numpy as np
import pytest

from saccade.report.axes import Scale, number, span, tick_labels, ticks, widen
from saccade.report.chart import DRAWN, HEIGHT, MARKED, SERIES, TOP, WIDTH, Point, line_chart, scatter
from support.markup import parse

LABELS = {"title": "T", "x_label": "epoch", "y_label": "loss"}


def coordinates(path):
    return [tuple(map(float, pair.split())) for pair in re.findall(r"[ML]([-\d.]+ [-\d.]+)", path)]


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3, 8), (2.1, 2.3), (0, 2e-3), (1e-7, 5e-7), (4e5, 9e8), (-1, -0.2)]
)
def test_ticks_are_even_round_and_inside(low, high):
    found = ticks(low, high)
    assert 2 <= len(found) <= 6
    room = 1e-9 * (high - low)
    assert all(low - room <= value <= high + room for value in found)
    gaps = np.diff(found)
    assert np.allclose(gaps, gaps[0], rtol=1e-6)
    assert re.fullmatch(r"[125]\.?0*e.*", f"{gaps[0]:.6e}")
    assert len(set(tick_labels(found))) == len(found)


def test_whole_ticks_have_no_fractions():
    assert ticks(1, 3, whole=True) == [1, 2, 3]
    assert ticks(0.5, 1.5, whole=True) == [1]
    assert all(float(value).is_integer() for value in ticks(1, 300, whole=True))


def test_labels_tell_ticks_apart_with_no_digit_too_many():
    assert tick_labels([2.15, 2.2, 2.25]) == ["2.15", "2.20", "2.25"]
    assert tick_labels([0, 2000, 4000]) == ["0", "2,000", "4,000"]
    assert tick_labels([0.0, 0.25], percent=True) == ["0%", "25%"]
    assert tick_labels([0, 1e-6, 2e-6]) == ["0", "1e-6", "2e-6"]
    assert tick_labels([-1, 0]) == ["\N{MINUS SIGN}1", "0"]
    assert len(set(tick_labels([1_000_000, 1_000_001, 1_000_002]))) == 3
    assert tick_labels([]) == []


def test_numbers_are_short_and_say_when_there_is_none():
    assert [number(value) for value in (2.15908, 353.13, 2.0128e-5, 0)] == ["2.159", "353.1", "2.01e-5", "0"]
    assert number(-0.5) == "\N{MINUS SIGN}0.5"
    assert number(0.2414, percent=True) == "24.1%"
    assert number(math.nan) == "not finite"


def test_a_range_has_width_whatever_the_values():
    assert span([]) == (0, 1)
    assert span([3, math.nan, math.inf]) == (1.5, 4.5)
    assert span([0, 0]) == (-0.5, 0.5)
    assert span([1, 2], include=[0]) == (0, 2)
    assert widen(0.12, 0.91) == pytest.approx((0, 1))
    assert Scale(0, 10, 100, 0)(2.5) == 75
    assert Scale(0, 10, 100, 0)(99) == 0


def test_line_goes_through_its_points():
    document = parse(line_chart({"a": [(0, 0), (5, 10), (10, 0)]}, **LABELS))
    first, second, third = coordinates(document.all("path", "line")[0].attrs["d"])
    assert first[1] == third[1] == HEIGHT - 44  # on the axis
    assert second[1] == TOP  # at the top tick
    assert second[0] == pytest.approx((first[0] + third[0]) / 2, abs=0.1)
    assert third[0] == WIDTH - 16


def test_missing_values_leave_a_gap_and_absent_ones_do_not():
    gap = parse(line_chart({"a": [(1, 1), (2, math.nan), (3, 2)]}, **LABELS)).all("path", "line")[0].attrs["d"]
    absent = parse(line_chart({"a": [(1, 1), (3, 2)]}, **LABELS)).all("path", "line")[0].attrs["d"]
    assert re.findall("[ML]", gap) == ["M", "M"]
    assert re.findall("[ML]", absent) == ["M", "L"]


def test_chart_says_in_words_what_it_shows():
    document = parse(line_chart({"training <x>": [(1, 2.5), (2, 1.25), (3, 2)]}, **LABELS))
    drawing = document.all("svg", "chart")[0]
    assert drawing.attrs["role"] == "img"
    told = drawing.attrs["aria-label"]
    assert told.startswith("T. Lines of loss by epoch. training <x>: from 2.5 at epoch 1 to 2 at epoch 3")
    assert "lowest 1.25 at epoch 2" in told
    assert document.all("figcaption")[0].text == "T"


def test_legend_names_every_series_when_there_are_several():
    one = parse(line_chart({"a": [(1, 1)]}, **LABELS))
    two = parse(line_chart({"a": [(1, 1)], "<b>": [(1, 2)]}, **LABELS))
    assert not one.all("ul", "legend")
    assert [item.text for item in two.all("li")] == ["a", "<b>"]


def test_points_tell_their_values_until_there_are_too_many():
    few = parse(line_chart({"a": [(i, i) for i in range(MARKED)]}, **LABELS))
    more = parse(line_chart({"a": [(i, i) for i in range(MARKED + 1)]}, **LABELS))
    assert len(few.all("path", "mark")) == MARKED
    assert few.all("title")[3].text == "a, epoch 3: 3"
    assert not more.all("path", "mark")
    assert len(more.all("path", "unseen")) == MARKED + 1


def test_a_long_series_is_thinned_and_keeps_its_ends():
    d = parse(line_chart({"a": [(i, i) for i in range(50_000)]}, **LABELS)).all("path", "line")[0].attrs["d"]
    points = coordinates(d)
    assert len(points) <= DRAWN + 1
    assert points[-1] == (WIDTH - 16, TOP)


def test_band_surrounds_its_line_in_its_colour():
    document = parse(
        line_chart({"a": [(0, 1), (1, 1)], "b": [(0, 1), (1, 2)]}, bands={"b": [(0, 0, 2), (1, 1, 3)]}, **LABELS)
    )
    (band,) = document.all("polygon")
    assert band.attrs["class"] == "band s2"
    ys = [float(pair.split(",")[1]) for pair in band.attrs["points"].split()]
    line = coordinates(document.all("path", "line")[-1].attrs["d"])  # after those of the legend
    (left, right), (upper, lower) = [y for _, y in line], (ys[:2], ys[:1:-1])
    assert upper[0] < left < lower[0]
    assert upper[1] < right < lower[1]


def test_one_interval_alone_is_seen():
    (band,) = parse(line_chart({"a": [(1, 1)]}, bands={"a": [(1, 0, 2)]}, **LABELS)).all("polygon")
    xs = {pair.split(",")[0] for pair in band.attrs["points"].split()}
    assert len(xs) == 2


@pytest.mark.parametrize("series", [{}, {"a": []}, {"a": [(1, math.nan)]}, {"a": [(1, 7)]}, {"a": [(1, 0), (2, 0)]}])
def test_charts_of_little_or_nothing_are_drawn(series):
    document = parse(line_chart(series, **LABELS))
    assert document.all("svg", "chart")
    assert "nan" not in "".join(element.attrs.get("d", "") for element in document.elements)


def test_axis_can_be_made_to_hold_zero():
    texts = [e.text for e in parse(line_chart({"a": [(1, 346), (2, 356)]}, zero=True, **LABELS)).all("text")]
    assert "0" in texts
    assert "400" in texts


def test_scatter_tells_groups_apart_by_mark_and_names_points():
    groups = {f"g{i}": [Point(i, i, f"<p{i}>")] for i in range(SERIES + 1)}
    document = parse(scatter(groups, **LABELS))
    marks = [element for element in document.all("path", "mark") if "title" not in element.inside and element.text]
    assert len(marks) == SERIES + 1
    looks = {(mark.attrs["class"], re.sub(r"M[-\d. ]+", "", mark.attrs["d"])) for mark in marks}
    assert len(looks) == SERIES + 1
    assert "<p3>" in [element.text for element in document.all("text")]
    assert parse(scatter({}, **LABELS)).all("svg", "chart")
    assert not parse(scatter({"a": [Point(math.nan, 1)]}, **LABELS)).all("path", "mark")


def test_a_share_that_stays_at_nothing_is_drawn_over_no_negative_values():
    drawn = line_chart({"validation": [(1, 0.0), (2, 0.0)]}, percent=True, **LABELS)
    assert "0%" in drawn
    assert "\N{MINUS SIGN}" not in drawn
    assert ">-" not in drawn
