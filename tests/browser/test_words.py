"""Texts and questions on the page, driven in a real browser: fields appear by what the first model reads."""

import pytest

import saccade
from saccade.deployment.app import create_app
from saccade.deployment.serve import _open
from support.serving import running

pytest.importorskip("selenium")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def words(tmp_path_factory, browser):
    from support.page import Page
    from support.questions import make_vilt, questions, write_questions
    from support.texts import make_model, write_cola

    root = tmp_path_factory.mktemp("words")
    table, asked = write_questions(root / "vqa", list(questions(20))), make_vilt(root / "vilt")
    texts, reader = write_cola(root / "cola"), make_model(root / "bert")
    small = {"epochs": 1, "batch_size": 8, "device": "cpu", "quiet": True}
    answering = saccade.train(
        str(table), task="vqa", model=str(asked), img_size=32, workers=0, out=root / "asked", **small
    )
    reading = saccade.train(str(texts), task="text", model=str(reader), out=root / "read", **small)
    models = [_open(one.path, device="cpu", trust=False) for one in (answering, reading)]
    with running(create_app(models)) as address:
        yield Page(browser, address), (table.parent / "bright.png").read_bytes()


def ask(page, text):
    page.one("#text").clear()
    page.one("#text").send_keys(text)
    page.one("#text-form button").click()


def test_a_question_is_asked_about_an_image(words):
    page, image = words
    page.open()
    assert page.one("#drop").is_displayed()
    assert page.text("#text-label") == "Ask about it"
    ask(page, "is the film bright")
    assert page.text("#status") == ""  # there is no image yet
    page.give(image)
    page.until(lambda: page.all(".answer"))
    assert {one.text for one in page.all(".shares .name")} == {"yes", "no"}
    assert page.text(".answer h3") == "asked: is the film bright"
    assert len(page.all(".answer img")) == 1
    assert page.console() == []


def test_a_text_needs_no_image(words):
    page, _ = words
    page.open()
    page.one("#first option:nth-child(2)").click()
    assert not page.one("#drop").is_displayed()
    assert page.text("#text-label") == "Write a text"
    ask(page, "the film is good")
    page.until(lambda: page.all(".answer"))
    assert page.all(".answer img") == []
    assert page.console() == []
