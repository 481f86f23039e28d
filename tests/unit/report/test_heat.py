import re

import numpy as np
import pytest

from saccade.report.heat import LEVELS, contrast, heat_css, heat_map
from support.markup import parse

LABELS = {"title": "Map", "row_label": "true", "column_label": "answered"}


def test_numbers_can_be_read_on_every_colour_in_light_and_dark():
    css = heat_css()
    fills = re.findall(r"\.h(\d+)\{fill:(#\w{6});", css)
    inks = re.findall(r"\.t(\d+)\{fill:(#\w{6})\}", css)
    assert len(fills) == len(inks) == 2 * (LEVELS + 1)
    for (level, fill), (same, ink) in zip(fills, inks, strict=True):
        assert level == same
        assert contrast(fill, ink) >= 4.5
    light, dark = [fill for _, fill in fills[: LEVELS + 1]], [fill for _, fill in fills[LEVELS + 1 :]]
    away = [[contrast(fill, ramp[0]) for fill in ramp] for ramp in (light, dark)]
    assert all(ramp == sorted(ramp) and len(set(ramp)) == LEVELS + 1 for ramp in away)


def test_contrast_is_that_of_wcag():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


def test_cells_stand_in_their_row_and_column_with_colour_text_and_tip():
    values = np.array([[1.0, 0.0, 0.01], [np.nan, 0.5, 0.25]])
    texts = [["100", "", "1"], ["", "50", "25"]]
    document = parse(heat_map(values, rows=["a", "<b>"], columns=["x", "y", "z"], texts=texts, **LABELS))
    cells = document.all("rect", "cell")
    levels = [int(cell.attrs["class"].split("h")[1]) for cell in cells]
    assert levels == [10, 0, 1, 0, 8, 5]
    places = [(float(cell.attrs["x"]), float(cell.attrs["y"])) for cell in cells]
    assert len({y for _, y in places}) == 2
    assert len({x for x, _ in places}) == 3
    assert places[1][0] > places[0][0]
    assert places[3][1] > places[0][1]
    tips = [group.text for group in document.all("g")]
    assert tips[2].startswith("a → z: 1.0%")
    assert tips[4].startswith("<b> → y: 50.0%")
    assert document.all("svg", "heat")[0].attrs["aria-label"].startswith("Map.")


def test_long_names_are_shortened_and_told_when_pointed_at():
    name = "a very long name of a class <indeed>"
    document = parse(heat_map(np.eye(1), rows=[name], columns=[name], **LABELS))
    assert name in [title.text for title in document.all("title")]
    assert all(len(text.text.replace(name, "")) <= 16 for text in document.all("text"))


def test_values_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"shape \(2, 2\) for 3 rows and 2 columns"):
        heat_map(np.eye(2), rows=["a", "b", "c"], columns=["x", "y"], **LABELS)
