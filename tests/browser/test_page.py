"""The page, driven in a real browser."""

import base64

import pytest

import saccade
from saccade.deployment.app import create_app
from saccade.deployment.browse import RunIndex
from saccade.deployment.serve import _open
from support.exports import COLUMNS, colourful, trained_run
from support.page import Page
from support.serving import BAD_NAME, Brightness, image, make_app, running

pytest.importorskip("selenium")


@pytest.mark.parametrize("way", ["drop", "paste"])
def test_an_image_that_is_dropped_or_pasted_is_answered_with_every_view(page, way):
    page.give(image(3), way=way)
    (answer,) = page.answered()
    assert "first" in answer
    assert "level 3" in answer
    assert "86.0%" in answer
    assert "first: level 3, 86.0%" in page.text("#status")
    assert [one.text for one in page.all(".view h3")] == ["Attention", "Entropy"]
    assert page.all(".view[data-view=entropy] svg.chart")
    assert page.text("[data-view=absent] summary") == "Views that do not apply here: Slots"


def test_a_file_can_be_chosen(page, tmp_path):
    (tmp_path / "a.png").write_bytes(image(5))
    page.one("#file").send_keys(str(tmp_path / "a.png"))
    assert "level 5" in page.answered()[0]


def test_the_slider_shows_one_layer_at_a_time(page):
    page.give(image())
    page.answered()
    slider = page.one(".view[data-view=attention] input[type=range]")

    def shown():
        return [one.get_attribute("alt") for one in page.all(".view[data-view=attention] img") if one.is_displayed()]

    assert shown() == ["Where layer 5 looks"]
    slider.send_keys("\ue012")  # left arrow
    assert shown() == ["Where layer 4 looks"]
    assert slider.get_attribute("aria-valuetext") == "5 of 6: blocks.4"
    slider.send_keys("\ue011")  # home
    assert shown() == ["Where layer 0 looks"]


def test_two_models_are_both_asked_from_the_start(browser, address):
    page = Page(browser, address)
    page.open()
    page.give(image(2))
    page.until(lambda: len(page.all(".answer")) == 2)
    assert [one.split()[0] for one in page.answered()] == ["first", "second"]


def test_two_models_stand_side_by_side_and_their_sliders_move_together(page):
    page.give(image(2))
    page.answered()
    page.one("#second option:nth-child(3)").click()
    page.until(lambda: len(page.all(".answer")) == 2)
    first, second = page.answered()
    assert "first" in first
    assert "second" in second
    left, right = (one.rect for one in page.all(".answer"))
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    one, other = page.all(".view[data-view=attention] input[type=range]")
    one.send_keys("\ue011")
    assert other.get_attribute("value") == "0"


def test_names_of_classes_are_text_whatever_they_hold(page):
    page.one("#first option:nth-child(2)").click()
    page.give(image(0))
    (answer,) = page.answered()
    assert BAD_NAME in answer
    assert page.browser.title.startswith("saccade")


def test_everything_can_be_done_by_the_keyboard_alone(page, tmp_path):
    (tmp_path / "a.png").write_bytes(image(4))
    page.tab_to(".skip")
    page.tab_to("#file")
    page.one("#file").send_keys(str(tmp_path / "a.png"))  # the system's dialog is not the page's
    page.answered()
    page.tab_to("#first")
    page.press("\ue015")  # down: the second model
    page.until(lambda: "second: level 4" in page.text("#status"))
    page.answered()
    page.tab_to("#with-views")
    page.tab_to(".view[data-view=attention] input[type=range]")
    page.press("\ue011")
    assert "1 of 6" in page.text(".view[data-view=attention] output")
    page.tab_to("#run-list button")
    page.press("\ue007")
    page.until(lambda: page.all("#report iframe"))
    page.tab_to("#report button")
    page.press("\ue007")
    page.until(lambda: not page.one("#report").is_displayed())
    focused = page.browser.execute_script("return document.activeElement.closest('#run-list') !== null")
    assert focused


def test_focus_is_seen(page):
    for css in ("#file", "#first", "#with-views", "#run-list button"):
        page.tab_to(css)
        outline = page.browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"


@pytest.mark.parametrize(
    ("data", "kind", "told"),
    [
        (image()[:50], "image/png", "broken.png: the file is"),
        (b"words", "image/png", "text, not an image"),
        (b"%PDF", "application/pdf", "application/pdf"),
    ],
)
def test_a_broken_file_is_refused_in_the_words_of_the_server(page, data, kind, told):
    page.give(image(1))
    page.answered()
    page.give(data, name="broken.png", kind=kind)
    page.until(lambda: page.text("#alarm"))
    assert told in page.text("#alarm")
    assert page.one("#alarm").get_attribute("role") == "alert"
    assert not page.all(".answer")
    page.give(image(1))  # and the page goes on
    page.answered()
    assert page.text("#alarm") == ""


def test_a_report_is_shown_where_it_can_run_nothing(page):
    assert "87.5%" in page.text("#run-list")
    page.one("#run-list button").click()
    page.until(lambda: page.all("#report iframe"))
    frame = page.one("#report iframe")
    assert frame.get_attribute("sandbox") == ""
    page.browser.switch_to.frame(frame)
    page.until(lambda: page.all("h1"))
    assert page.text("h1") == "The report of one"
    page.browser.switch_to.default_content()
    assert page.browser.title.startswith("saccade")
    page.one("#report button").click()
    complaints = page.console()  # that the report's script was not let run
    assert all("sandbox" in line or "Content Security Policy" in line for line in complaints)


def test_a_photograph_can_be_taken(page):
    page.one("#photograph").click()
    page.until(lambda: page.browser.execute_script("return document.getElementById('camera-image').videoWidth") > 0)
    page.one("#camera-take").click()
    assert page.answered()
    assert not page.one("#camera").get_attribute("open")


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (1200, "dark"), (320, "light"), (320, "dark")])
def test_axe_finds_nothing_wrong_and_nothing_is_cut_off(page, axe, width, scheme):
    page.open(width=width, scheme=scheme)
    assert page.faults(axe) == []
    page.one("#second option:nth-child(3)").click()
    page.give(image(3))
    page.answered()
    assert page.faults(axe) == []
    wide = page.browser.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width
    ground = page.browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 31)"}[scheme]


def test_the_description_for_programs_is_readable(page, axe):
    page.open(path="/docs")
    page.until(lambda: "POST /predict" in page.text("main"))
    assert "multipart/form-data" in page.text("main")
    assert page.faults(axe) == []


def test_a_token_is_asked_for_once(browser):
    from support.page import Page

    with running(make_app(Brightness(), token="open sesame")) as address:
        page = Page(browser, address)
        browser.get(address)
        page.until(lambda: page.one("#token-form").is_displayed())
        page.press("wrong", "\ue007")
        page.until(lambda: "not the server's" in page.text("#alarm"))
        page.press("open sesame", "\ue007")
        page.until(lambda: page.all("#first option"))
        page.give(image(6))
        assert "level 6" in page.answered()[0]
        browser.get(address)
        page.until(lambda: page.all("#first option"))
        assert not page.one("#token-form").is_displayed()


@pytest.fixture(scope="module")
def other_tasks(tmp_path_factory):
    """A server of two runs that are trained for other tasks than classes, and one of their images."""
    folder = tmp_path_factory.mktemp("tasks")
    files = colourful(folder / "images")
    runs = [trained_run(folder / name, folder / "images" / f"{name}.csv") for name in ("labels", "numbers")]
    app = create_app([_open(run, device="cpu", trust=False) for run in runs], runs=RunIndex(runs=runs))
    with running(app) as address:
        yield address, files[7].read_bytes()


def test_numbers_are_shown_without_bars(browser, axe, other_tasks, tmp_path):
    from support.page import Page

    address, image = other_tasks
    page = Page(browser, address)
    page.open()
    page.one("#first option:nth-child(2)").click()
    page.give(image)
    (answer,) = page.answered()
    assert [one.text for one in page.all(".shares .name")] == list(COLUMNS)
    values = [float(one.text) for one in page.all(".shares .share")]
    assert values[1] < 0 < values[0]
    assert not page.all(".shares .track")
    assert "%" not in answer
    assert f"numbers: brightness {values[0]:g}, -redness {values[1]:g}" in page.text("#status")
    assert page.all(".view")
    assert "mean absolute error" in page.text("#run-list")
    assert "deviations" in page.text("#run-list")
    assert page.faults(axe) == []
    assert page.browser.save_screenshot(str(tmp_path / "numbers.png"))
    assert page.console() == []


def test_labels_that_are_said_are_marked(browser, axe, other_tasks):
    from support.page import Page

    address, image = other_tasks
    page = Page(browser, address)
    page.open()
    page.give(image)
    page.answered()
    asked = page.browser.execute_async_script(
        "const done = arguments[arguments.length - 1], data = new FormData();"
        "data.append('file', new Blob([Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0))],"
        "{type: 'image/png'})); fetch('/predict', {method: 'POST', body: data}).then((r) => r.json()).then(done)",
        base64.b64encode(image).decode(),
    )
    assert len(page.all(".shares .track")) == len(asked["rows"]) == 3
    assert len(page.all(".shares .mark")) == len(page.all(".shares li.said")) == len(asked["answer"])
    for row, shown in zip(asked["rows"], page.all(".shares li"), strict=True):
        assert row["name"] in shown.text
        assert ("✓" in shown.text) == (row["name"] in asked["answer"])
    assert "mean average precision" in page.text("#run-list")
    assert page.faults(axe) == []
    assert page.console() == []


@pytest.fixture(scope="module")
def reading(tmp_path_factory):
    """A server of two models that read texts: one of single texts, one of pairs."""
    pytest.importorskip("transformers")
    from support.texts import make_model, sentences, write_cola, write_tsv

    root = tmp_path_factory.mktemp("texts")
    model, head = make_model(root / "bert"), "second_order:num_heads=1,head_dim=4"
    rows = [[str(n), text, "a film", label] for n, (text, label) in enumerate(sentences(24))]
    write_tsv(root / "rte" / "train.tsv", ["index", "sentence1", "sentence2", "label"], rows)
    options = {"epochs": 1, "batch_size": 8, "device": "cpu", "quiet": True, "plugins": [head]}
    runs = [
        saccade.train(str(data), task="text", model=str(model), out=root / name, **options).path
        for name, data in (("single", write_cola(root / "cola")), ("pairs", root / "rte"))
    ]
    with running(create_app([_open(run, device="cpu", trust=False) for run in runs])) as address:
        yield address, runs


def test_a_text_is_written_answered_and_its_words_coloured(browser, axe, reading, tmp_path):
    from support.page import Page

    address, (single, pairs) = reading
    page = Page(browser, address)
    page.open()
    page.until(lambda: page.one("#text-form").is_displayed())
    assert not page.one("#drop").is_displayed()
    assert not page.one("#pair").is_displayed()
    text = "the film is <b>good</b>"
    page.one("#text").send_keys(text)
    page.one("#text-form button").click()
    page.answered()
    want = dict(next(saccade.predict(single, [text])).answers)
    assert {one.text for one in page.all(".shares .name")} == set(want)
    assert f"{max(want.values()):.1%}" in page.text("#status")
    page.until(lambda: page.all(".sentence"))
    assert len(page.all(".sentence")) == 3  # the whole answer, the class token, the words
    assert not page.all("blockquote b")
    assert page.faults(axe) == []
    assert page.browser.save_screenshot(str(tmp_path / "text.png"))
    page.one("#first option:nth-child(2)").click()
    page.until(lambda: page.one("#pair").is_displayed())
    page.one("#text").clear()
    page.one("#text").send_keys("a film")
    page.one("#pair").send_keys("the song")
    page.one("#text-form button").click()
    want = dict(next(saccade.predict(pairs, ["a film\tthe song"])).answers)
    page.until(lambda: f"{max(want.values()):.1%}" in page.text("#status"))
    assert page.console() == []
