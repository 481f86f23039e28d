"""The page stands alone, can be used without a mouse, holds its numbers, and never replaces what it should not."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from saccade.explanation.page import render
from saccade.explanation.result import FOLDER, Explanation
from saccade.explanation.view import ExplainedSample, Figure, View

PIXELS = np.full((8, 8, 3), 200, np.uint8)


def explanation(names=("cat.png",), **options) -> Explanation:
    figures = [
        Figure(
            f"map-{depth}",
            f"Layer {depth}.",
            PIXELS,
            numbers={"share": depth / 4},
            layer=f"blocks.{depth}",
            depth=depth,
        )
        for depth in range(3)
    ]
    views = [
        View("attention", "What attention looks at", "How to read it.", figures=figures, numbers={"layers": 3}),
        View("slots", "What slots stand for", "About.", absent="This model has no <slots>."),
    ]
    answer = [("dog", 0.75), ("<b>cat</b>", 0.25)]
    return Explanation("model", [ExplainedSample(name, PIXELS, answer, views) for name in names], **options)


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def of(self, name):
        return [attrs for tag, attrs in self.found if tag == name]


def test_page_needs_nothing_but_itself():
    page = render(explanation())
    tags = Tags(page)
    assert not tags.of("script")
    assert not tags.of("link")
    assert all(image["src"].startswith("data:image/png;base64,") for image in tags.of("img"))
    assert "default-src 'none'" in page
    assert "http://" not in page.replace("http-equiv", "")


def test_names_and_reasons_are_text_never_markup():
    page = render(explanation(names=["<script>x</script>.png"]))
    assert "<script" not in page
    assert "<b>cat" not in page
    assert "This model has no &lt;slots&gt;." in page


def test_layers_are_radio_buttons_with_labels_and_the_last_is_on():
    tags = Tags(render(explanation()))
    buttons, labels = tags.of("input"), tags.of("label")
    assert [button["type"] for button in buttons] == ["radio"] * 3
    assert len({button["name"] for button in buttons}) == 1
    assert [label["for"] for label in labels] == [button["id"] for button in buttons]
    assert ["checked" in button for button in buttons] == [False, False, True]
    assert [button["aria-label"] for button in buttons] == ["blocks.0", "blocks.1", "blocks.2"]


def test_ids_are_unique_on_a_page_of_several_images():
    page = render(explanation(names=["a.png", "a.png"]))
    ids = [attrs["id"] for _, attrs in Tags(page).found if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert len({button["name"] for button in Tags(page).of("input")}) == 2


def test_links_lead_somewhere():
    tags = Tags(render(explanation()))
    ids = {attrs["id"] for _, attrs in tags.found if "id" in attrs}
    assert {link["href"].removeprefix("#") for link in tags.of("a")} <= ids


def test_folder_holds_page_images_and_numbers(tmp_path):
    page = explanation(names=["a.png", "b.png"], against="other").save(tmp_path / "deep" / "out")
    folder = page.parent
    assert sorted(path.name for path in folder.iterdir()) == ["image-1", "image-2", "index.html", "numbers.json"]
    numbers = json.loads((folder / "numbers.json").read_text())
    view = numbers["samples"][1]["views"]["attention"]
    assert view["figures"]["map-2"]["numbers"] == {"share": 0.5}
    assert numbers["samples"][0]["views"]["slots"] == {"absent": "This model has no <slots>."}
    assert numbers["samples"][0]["answer"][0] == {"class": "dog", "probability": 0.75, "share": 0.75}
    image = Image.open(folder / view["figures"]["map-2"]["file"])
    assert np.array_equal(np.asarray(image), PIXELS)


def test_explanation_is_replaced_only_if_asked_and_nothing_else_ever(tmp_path):
    out = tmp_path / "out"
    explanation().save(out)
    with pytest.raises(FileExistsError, match="--overwrite"):
        explanation().save(out)
    explanation(names=["new.png"]).save(out, overwrite=True)
    assert "new.png" in (out / "index.html").read_text()
    assert FOLDER.choose(out, overwrite=False) == tmp_path / "out-2"
    assert FOLDER.choose(out, overwrite=True) == out
    assert FOLDER.choose(tmp_path / "new", overwrite=False) == tmp_path / "new"
    other = tmp_path / "work"
    other.mkdir()
    (other / "thesis.tex").write_text("years of it")
    with pytest.raises(FileExistsError, match="not an explanation folder"):
        explanation().save(other, overwrite=True)
    with pytest.raises(FileExistsError, match="not an explanation folder"):
        FOLDER.choose(other, overwrite=False)
    assert (other / "thesis.tex").read_text() == "years of it"
    with pytest.raises(FileExistsError, match="is a file"):
        explanation().save(other / "thesis.tex")


def test_nothing_is_left_behind_by_a_failure(tmp_path):
    broken = explanation()
    broken.samples[0].views[0].numbers["layers"] = float("nan")  # JSON has no such number
    with pytest.raises(ValueError, match="JSON"):
        broken.save(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_keys_become_safe_file_names(tmp_path):
    view = View("v", "V", "About.", figures=[Figure("../../evil name", "x", PIXELS)])
    one = Explanation("m", [ExplainedSample("p", PIXELS, [], [view])])
    page = one.save(tmp_path / "out")
    files = [path.name for path in (page.parent / "image-1").iterdir()]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+\.png", name) for name in files)
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
