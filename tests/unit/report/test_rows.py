import math

import pytest

from saccade.report.rows import INSET, Interval, interval_chart, strip
from support.markup import parse


def share(text):
    return float(text.rstrip("%"))


def test_rows_hold_names_numbers_and_remarks():
    rows = [Interval("<base>", -0.01, 0.005, 0.02, "cannot tell"), Interval("b", 0.01, 0.02, 0.03)]
    document = parse(interval_chart(rows, title="Arms", x_label="Difference", percent=True, remark_label="Verdict"))
    assert document.rows("Arms") == [
        ["<base>", "", "0.5% \N{MINUS SIGN}1.0% to 2.0%", "cannot tell"],
        ["b", "", "2.0% 1.0% to 3.0%", ""],
    ]
    assert [cell.text for cell in document.all("th") if cell.attrs["scope"] == "col"] == [
        "Name", "Difference", "Mean and interval", "Verdict",
    ]  # fmt: skip


def test_zero_line_stands_between_ends_of_opposite_sign():
    document = parse(interval_chart([Interval("a", -1, 0.5, 2)], title="T", x_label="x"))
    zero = share(document.all("line", "zero")[0].attrs["x1"])
    ends = document.all("line", "whisker")[0].attrs
    assert share(ends["x1"]) < zero < share(document.all("circle")[0].attrs["cx"]) < share(ends["x2"])


def test_axis_ticks_agree_with_the_rows():
    document = parse(interval_chart([Interval("a", 0, 50, 100)], title="T", x_label="x", x_range=(0, 100), zero=None))
    places = {element.text: share(element.attrs["x"]) for element in document.all("text")}
    assert share(document.all("circle")[0].attrs["cx"]) == places["50"] == 50
    assert places["0"] == INSET
    assert places["100"] == 100 - INSET


def test_bar_reaches_from_zero_to_the_mean():
    (bar,) = parse(strip(0.1, 0.25, 0.4, x_range=(0, 1), bar=True)).all("rect")
    assert share(bar.attrs["x"]) == INSET
    assert share(bar.attrs["width"]) == pytest.approx(0.25 * (100 - 2 * INSET), abs=0.01)
    (below,) = parse(strip(-3, -2, -1, x_range=(-4, 4), zero=0, bar=True)).all("rect")
    assert share(below.attrs["x"]) + share(below.attrs["width"]) == pytest.approx(50, abs=0.02)


def test_values_that_are_not_finite_are_left_out_of_the_drawing():
    document = parse(interval_chart([Interval("a", math.nan, 1, math.nan)], title="T", x_label="x"))
    assert not document.all("line", "whisker")
    assert document.all("circle")
    assert "not finite" in document.rows("T")[0][2]
    assert parse(interval_chart([], title="T", x_label="x")).rows("T") == []
