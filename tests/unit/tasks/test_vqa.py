"""Questions about images over ViLT, with Context Broadcasting on image, text or both."""

import csv

import numpy as np
import pytest
import transformers
from PIL import Image

import saccade
from saccade.building import load_model
from saccade.config import DataConfig
from saccade.tasks.opening import open_samples
from saccade.tasks.vqa.data import read_answers
from support.texts import WORDS, make_tokenizer

SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


@pytest.fixture(scope="module")
def vilt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vilt")
    transformers.set_seed(0)
    config = transformers.ViltConfig(
        image_size=32, patch_size=8, max_position_embeddings=32, vocab_size=len(WORDS), max_image_length=-1, **SIZE
    )
    transformers.ViltModel(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def write_questions(folder, rows):
    folder.mkdir(exist_ok=True)
    for name, level in (("dark.png", 30), ("bright.png", 220)):
        Image.fromarray(np.full((24, 40, 3), level, np.uint8)).save(folder / name)
    with (folder / "questions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "question", "answer", "split"), *rows])
    return folder / "questions.csv"


def questions(count):
    for n in range(count):
        bright = n % 2 == 0
        answers = "yes|yes|yes|no" if bright else "no=1|yes=0.3"
        split = "val" if n >= count - 4 else "train"
        yield ("bright.png" if bright else "dark.png"), "is the film bright", answers, split


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_questions(tmp_path_factory.mktemp("vqa"), list(questions(20)))


@pytest.mark.parametrize("tokens", ["image", "text", "all"])
def test_vilt_with_broadcast_trains_and_comes_back(vilt, table, tmp_path, tokens):
    plugins = [f"broadcast:scale=true,tokens={tokens}"]
    options = {"epochs": 1, "batch_size": 8, "img_size": 32, "lr": 1e-3, "device": "cpu", "workers": 0, "quiet": True}
    done = saccade.train(str(table), task="vqa", model=str(vilt), plugins=plugins, out=tmp_path / "run", **options)
    assert done.metric == "score"
    found = saccade.evaluate(tmp_path / "run", quiet=True).runs["run"].metrics["score"]
    assert found.value == pytest.approx(done.score, abs=1e-6)
    model, spec = load_model(tmp_path / "run")
    assert spec.outputs == ("no", "yes")
    assert any("broadcast" in name for name, _ in model.named_modules())
    with pytest.raises(ValueError, match="saccade evaluate"):
        saccade.predict(tmp_path / "run", ["x"])


def test_answers_are_worth_what_people_agree_on(tmp_path):
    assert read_answers("Yes", tmp_path, 1) == {"yes": 1.0}
    assert read_answers("yes|yes|yes|no", tmp_path, 1) == {"yes": 1.0, "no": pytest.approx(1 / 3)}
    assert read_answers("no=1|maybe=0.3", tmp_path, 1) == {"no": 1.0, "maybe": 0.3}


def test_targets_are_soft_and_questions_of_an_image_stay_together(table):
    data = open_samples("vqa", DataConfig(path=str(table)))[1]
    assert data.train.targets.rows[0].tolist() == pytest.approx([1 / 3, 1.0])
    assert data.train.sample(0).inputs["text"] == "is the film bright"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([("dark.png", "is it", "", "train")], "row 1 has no answer"),
        ([("dark.png", "", "yes", "train")], "empty image or question"),
        ([("dark.png", "is it", "yes=2", "train")], "number from 0 to 1"),
        ([("dark.png", "is it", "yes=1|no", "train")], "give all answers of a row a worth"),
        ([("dark.png", "is it", "yes", "train"), ("dark.png", "is it", "yes", "train")], "has 1 answer"),
        ([("dark.png", "is it", "yes", "learn")], "train, val or test"),
    ],
)
def test_bad_questions_are_refused(tmp_path, rows, told):
    with pytest.raises(ValueError, match=told):
        open_samples("vqa", DataConfig(path=str(write_questions(tmp_path, rows))))


def test_missing_images_are_refused(tmp_path):
    file = write_questions(tmp_path, [("gone.png", "is it", "yes", "train"), ("dark.png", "is it", "no", "train")])
    with pytest.raises(FileNotFoundError, match=r"gone\.png"):
        open_samples("vqa", DataConfig(path=str(file)))


def test_rare_answers_are_never_given(tmp_path):
    answers = ("yes", "yes", "no", "no", "maybe", "yes")
    rows = [(("dark.png", "bright.png")[n % 2], "is it", answer, "train") for n, answer in enumerate(answers)]
    path = write_questions(tmp_path, rows)
    data = open_samples("vqa:answers=2", DataConfig(path=str(path), val_share=0.5))[1]
    assert data.outputs == ("no", "yes")
    assert "1 rare answers are never given" in data.notes
    assert {data.val.name(n) for n in range(len(data.val))}.isdisjoint(
        data.train.name(n) for n in range(len(data.train))
    )
