"""What runs and plans of texts and questions tell before the training begins."""

import csv
import re

import pytest
import torch

import saccade
from saccade.runs.run import Run
from saccade.settings import DataConfig, overlay
from saccade.settings.decisions import read_decisions
from saccade.support.telling import saying
from saccade.tasks.opening import open_samples
from saccade.tasks.text import tokens
from saccade.training.machine import BudgetFitter
from saccade.training.pace import measure_pace
from saccade.training.parallel import World
from saccade.training.recipes import configure
from saccade.training.resolve import resolve
from support.questions import make_vilt, questions, write_questions
from support.texts import make_model, sentences

OF_IMAGES = ("data.img_size", "data.mean", "data.std", "data.workers")


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("told")
    with (folder / "mine.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *sentences(60)])
    return {"data": str(folder / "mine.csv"), "task": "text", "model": str(make_model(folder / "bert"))}


def test_a_plan_of_texts_speaks_of_no_images(given):
    made = saccade.plan(**given, device="cpu")
    assert not {one.setting for one in made.decisions} & set(OF_IMAGES)
    assert "resolution" not in str(made)
    assert made.config.data.img_size is None
    assert made.memory == 16 * made.parameters + made.pace.activations
    assert made.pace.parameters == made.parameters


def test_activations_are_those_of_a_whole_batch(given):
    found = []
    for size in (8, 48):
        config = configure(None, {"data.path": given["data"], "task": "text", "model.name": given["model"]})
        config = overlay(config, {"optim.batch_size": size})
        found.append(measure_pace(config, *open_samples("text", config.data), torch.device("cpu")).activations)
    # Two layers keep at least inputs, keys, queries, values and results of 16 channels for eight tokens a text.
    assert found[0] > 8 * 8 * 2 * 5 * 16 * 4
    assert 3 < found[1] / found[0] < 12


def test_a_run_of_texts_on_a_cpu_is_told_of_before_and_stays_the_same(given, tmp_path, capsys):
    more = {**given, "epochs": 2, "batch_size": 8, "device": "cpu"}
    saccade.train(**more, out=tmp_path / "quiet", quiet=True)
    assert capsys.readouterr().err == ""
    saccade.train(**more, out=tmp_path / "told")
    said = capsys.readouterr().err
    before = said[: said.index("epoch 1/2")]
    assert "54 texts of" in before
    assert "a batch" in before
    assert "bert: 5,122 parameters; 2 epochs x 6 steps of batch size 8, about " in before
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("quiet", "told"))
    assert one == two
    assert not {one.setting for one in read_decisions(Run.open(tmp_path / "told").path)} & set(OF_IMAGES)


@pytest.mark.parametrize("named", [{}, {"schedule.epochs": 2}, {"schedule.steps": 12}])
def test_an_estimate_asks_for_no_length_that_was_given(given, named):
    asked = {"data.path": given["data"], "task": "text", "model.name": given["model"], **named}
    config = configure(None, {**asked, "engine.device": "cpu"})
    fitter, opened = BudgetFitter(given=asked, tells=True), open_samples("text", config.data)
    _, [note] = fitter.fit(config, *opened, World(), torch.device("cpu"))
    assert ("--epochs" in note) == (not named)
    assert note.endswith("--time 10m fits the run into ten minutes")


def test_long_reading_says_how_far_it_is(given, monkeypatch):
    said = []
    reading = reading_of(given)
    texts = [(text,) for text, _ in sentences(25)]
    with saying(said.append):
        whole = reading.encode(texts)
        assert said == []
        monkeypatch.setattr(tokens, "MANY", 10)
        parts = reading.encode(texts)
    assert said == [f"tokenizing texts {a} to {b} of 25 ..." for a, b in ((1, 10), (11, 20), (21, 25))]
    assert torch.equal(whole.ids, parts.ids)
    assert torch.equal(whole.lengths, parts.lengths)


def reading_of(given):
    config = configure(None, {"data.path": given["data"], "task": "text", "model.name": given["model"]})
    choice, data = open_samples("text", config.data)
    _, spec = resolve(config, choice, data, torch.device("cpu"))
    return tokens.Reading.of(spec)


def test_a_plan_of_questions_has_vilts_normalisation(tmp_path):
    table = write_questions(tmp_path / "asked", list(questions(12)))
    more = {"img_size": 32, "device": "cpu", "workers": 0, "epochs": 1, "batch_size": 2}
    made = saccade.plan(str(table), task="vqa", model=str(make_vilt(tmp_path / "vilt")), **more)
    assert (made.config.data.mean, made.config.data.std) == ([0.5] * 3, [0.5] * 3)
    assert made.explain("data.mean").rule == "normalisation"


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (
            ["yes|yes", "yes|no|no", "no"],
            "2 rows with .* fewer than 10 people, 2 at least: .* is 0.33 .* 0.17 for",
        ),
        (["|".join(["yes"] * 9), "yes=1|no=0.3", "no"], "1 row .* 9 at least: .* is 1.00 .* 0.30 for"),
        (["|".join(["yes"] * 10), "yes=1|no=0.3", "no"], None),
    ],
)
def test_answers_of_few_people_are_told_of(tmp_path, answers, told):
    rows = [("dark.png", "is the film bright", answer, "train") for answer in answers]
    table = write_questions(tmp_path / "asked", [*rows, ("bright.png", "is the film bright", "no", "val")])
    data = open_samples("vqa", DataConfig(path=str(table)))[1]
    notes = [note for note in data.notes if "people" in note]
    assert len(notes) == (told is not None)
    assert told is None or re.match(told, notes[0])
