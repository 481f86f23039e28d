import base64
import hashlib
import itertools
import re
from importlib import resources

import numpy as np
import pytest

from saccade.report.chart import line_chart
from saccade.report.heat import contrast
from saccade.report.markup import tag
from saccade.report.page import Section, facts, fold, grid, paragraph, render_page, table
from support.markup import parse

CSS = (resources.files("saccade.report") / "page.css").read_text()
# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SIGHTS = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def palettes():
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.S)
    return {
        mode: dict(re.findall(r"--(\w+): (#\w{6})", block))
        for mode, block in zip(("light", "dark"), blocks, strict=True)
    }


def lab(colour, sight):
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(sight) @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ seen
    f = np.cbrt(xyz / [0.9505, 1, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.fixture
def page():
    body = table(["Name", "Number"], [["<a>", 1], ["b", tag("i", "x")]], caption="Two rows", numeric=(1,))
    sections = [Section("one", "One & all", body), Section("two", "Two", fold("More", paragraph("hidden")))]
    return render_page("<Title>", sections, kind="Report", lead=facts([("Fact", "1 < 2", "why")]), foot="End")


def test_page_is_well_formed_and_has_one_title_and_landmarks(page):
    document = parse(page)
    assert page.startswith("<!DOCTYPE html>")
    assert [element.text for element in document.all("h1")] == ["<Title>"]
    assert document.all("title")[0].text == "<Title> · Report"
    assert document.all("html")[0].attrs["lang"] == "en"
    assert all(len(document.all(name)) == 1 for name in ("main", "nav", "header", "footer"))


def test_every_section_can_be_reached_from_the_contents(page):
    document = parse(page)
    ids = {element.attrs["id"] for element in document.elements if "id" in element.attrs}
    links = [element.attrs["href"] for element in document.all("a")]
    assert links == ["#content", "#one", "#two"]
    assert {link[1:] for link in links} <= ids
    assert [section.attrs["aria-labelledby"] for section in document.all("section")] == ["one", "two"]


def test_page_needs_nothing_from_outside_and_runs_nothing(page):
    document = parse(page)
    assert not document.all("script")
    assert not document.all("link")
    assert "default-src 'none'" in document.all("meta")[1].attrs["content"]
    assert not re.search(r"https?://|@import|url\(", page)
    assert not any(name.startswith("on") for element in document.elements for name in element.attrs)


def test_the_script_of_charts_comes_with_charts_alone_and_is_the_only_one_that_may_run():
    chart = line_chart({"<b>": [(1, 2.0), (2, 3.0)]}, title="T", x_label="epoch", y_label="loss")
    page = render_page("T", [Section("one", "One", chart)], kind="Report")
    document = parse(page)
    (script,) = document.all("script")
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in document.all("meta")[1].attrs["content"]
    assert "</" not in script.text  # nothing in it ends the element
    assert not re.search(r"fetch|XMLHttp|import\(|eval|innerHTML", script.text)
    assert "script-src" not in render_page("T", [Section("one", "One", paragraph(' data-x="'))], kind="Report")


def test_table_names_its_rows_and_columns_and_can_be_scrolled_by_keyboard(page):
    document = parse(page)
    scopes = [cell.attrs["scope"] for cell in document.all("th")]
    assert scopes == ["col", "col", "row", "row"]
    assert document.rows("Two rows") == [["<a>", "1"], ["b", "x"]]
    region = document.all("div", "scroll")[0]
    assert region.attrs["tabindex"] == "0"
    assert region.attrs["aria-label"] == "Two rows"


def test_grid_and_fold_hold_what_they_are_given():
    document = parse(grid(tag("b", "x"), "<y>") + fold("More <", "z"))
    assert [element.text for element in document.all("div", "grid")] == ["x<y>"]
    assert document.all("summary")[0].text == "More <"


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa_and_lines_that_of_graphics(mode):
    colours = palettes()[mode]
    for text, ground in itertools.product(("ink", "soft", "link"), ("page", "raised")):
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for line in ("s1", "s2", "s3", "s4", "s5", "s6", "edge"):
        assert contrast(colours[line], colours["page"]) >= 3, line
    assert contrast(colours["ink"], colours["bar"]) >= 3  # whiskers over bars


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_series_differ_to_every_kind_of_sight(mode, sight):
    colours = palettes()[mode]
    seen = {name: lab(colours[name], SIGHTS[sight]) for name in ("s1", "s2", "s3", "s4", "s5", "s6")}
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 20, (one, other)
