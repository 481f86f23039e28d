import pytest

from saccade.report.axes import ticks, widen
from saccade.report.chart import WIDTH, Point, scatter
from support.markup import parse


@pytest.mark.parametrize("most", [4, 6])
@pytest.mark.parametrize(
    ("low", "high"), [(-0.213, 0.333), (-0.31, 0.31), (0, 0.61), (-90.2, 100), (0.4, 0.41), (-1e-5, 3e-5), (12, 99)]
)
def test_a_widened_range_begins_and_ends_at_ticks_of_its_own(low, high, most):
    begin, end = widen(low, high, most=most)
    found = ticks(begin, end, most=most)
    hair = 1e-9 * (high - low)
    assert begin <= low + hair < high - hair <= end
    assert 2 <= len(found) <= most
    assert (found[0], found[-1]) == pytest.approx((begin, end))


def test_names_of_points_close_together_are_written_on_lines_of_their_own():
    points = [Point(1.0, 0.0, "base"), Point(1.01, 0.0, "broadcast"), Point(2.0, 3.0, "last")]
    page = parse(scatter({"arms": points}, title="t", x_label="x", y_label="y"))
    heights = {one.text: float(one.attrs["y"]) for one in page.all("text")}
    assert abs(heights["base"] - heights["broadcast"]) > 13


def test_names_of_points_stay_within_the_chart():
    points = [Point(place / 20, place, f"{place:02d} broadcast:scale=true") for place in range(21)]
    page = parse(scatter({"arms": points}, title="t", x_label="x", y_label="y"))
    names = [one for one in page.all("text") if "broadcast" in one.text]
    assert len(names) == len(points)
    for one in names:
        begin, width = float(one.attrs["x"]), 7.4 * len(one.text)
        assert (begin - width > 0) if one.attrs.get("text-anchor") == "end" else (begin + width < WIDTH)
