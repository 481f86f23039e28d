"""Questions about images over ViLT, with Context Broadcasting on image, text or both."""

import io
import sys

import httpx
import pytest
import torch
import transformers

import saccade
from saccade.building.build import load_model
from saccade.deployment.app import create_app
from saccade.deployment.serve import _open
from saccade.runs.run import Run
from saccade.settings import ConfigError, DataConfig
from saccade.tasks.opening import open_samples
from saccade.tasks.vqa.data import read_answers
from saccade.tasks.vqa.questions import agreement
from saccade.tasks.vqa.task import AnswerQuestions
from support.questions import make_vilt, questions, write_questions
from support.serving import running


@pytest.fixture(scope="module")
def vilt(tmp_path_factory):
    return make_vilt(tmp_path_factory.mktemp("vilt"))


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


@pytest.fixture(scope="module")
def run(vilt, table, tmp_path_factory):
    options = {"epochs": 1, "batch_size": 8, "img_size": 32, "lr": 1e-3, "device": "cpu", "workers": 0, "quiet": True}
    plugins = ["broadcast:scale=true,tokens=image"]
    out = tmp_path_factory.mktemp("run") / "run"
    return saccade.train(str(table), task="vqa", model=str(vilt), plugins=plugins, out=out, **options).path


def shares(target, given):
    return [dict(one.answers) for one in saccade.predict(target, given)]


def test_tables_lines_and_standard_input_are_asked_alike(run, table, tmp_path, monkeypatch):
    folder = table.parent
    (folder / "asked.csv").write_text("image,question\nbright.png,is the film bright\ndark.png,is it\n")
    want = shares(run, folder / "asked.csv")
    assert want[0] != want[1]
    lines = [f"{folder / 'bright.png'}\tis the film bright", f"{folder / 'dark.png'}\tis it"]
    assert shares(run, lines) == want
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    assert shares(run, tmp_path / "lines.txt") == want
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    assert shares(run, "-") == want


def test_answers_of_predict_are_those_of_validation(run, table):
    given = Run.open(run).predictions()
    outputs = load_model(run)[1].outputs
    data = open_samples("vqa", DataConfig(path=str(table)))[1]
    lines = [f"{table.parent / data.val.name(n)}\t{data.val.questions[n]}" for n in given["place"]]
    assert [one.answer.text.split(" ")[0] for one in saccade.predict(run, lines)] == [
        outputs[n] for n in given["answer"]
    ]


def test_questions_that_cannot_be_asked_are_named(run, table, tmp_path):
    folder = table.parent
    found = list(
        saccade.predict(
            run, [f"{folder / 'gone.png'}\tis it", f"{table}\tis it", f"{folder / 'dark.png'}\t{'film ' * 60}"]
        )
    )
    assert [one.answer for one in found] == [None] * 3
    assert "more tokens than the maximum of 32" in found[2].problem
    for wrong in ("dark.png", "dark.png\t ", "\tis it"):
        with pytest.raises(ValueError, match="not an image with a question"):
            list(saccade.predict(run, [wrong]))
    (tmp_path / "a.csv").write_text("image,words\na,b\n")
    with pytest.raises(ValueError, match="it needs question or text"):
        list(saccade.predict(run, tmp_path / "a.csv"))


def test_server_takes_an_image_with_a_question(run, table):
    image = (table.parent / "bright.png").read_bytes()
    file = {"file": ("bright.png", image, "image/png")}
    (want,) = shares(run, [f"{table.parent / 'bright.png'}\tis the film bright"])
    model = _open(run, device="cpu", trust=False)
    with running(create_app([model])) as address, httpx.Client(base_url=address, timeout=60) as client:
        (about,) = client.get("/model").json()["models"]
        assert (about["reads"], about["explain"]) == ("question", False)
        given = client.post("/predict", files={**file, "text": (None, "is the film bright")}).json()
        assert {row["name"]: row["share"] for row in given["rows"]} == pytest.approx(want, abs=1e-5)
        for files, told in (
            (file, "text is empty"),
            ({"text": (None, "is it")}, "send one in the field `file`"),
            ({**file, "text": (None, "film " * 60)}, "more tokens than the maximum of 32"),
            ({**file, "text": (None, "is it"), "pair": (None, "or not")}, "reads one text"),
            ({"file": ("a.png", b"none", "image/png"), "text": (None, "is it")}, "text, not an image"),
        ):
            refused = client.post("/predict", files=files)
            assert refused.status_code in (415, 422), files
            assert told in refused.json()["detail"]


def test_whole_images_are_embedded_as_vilt_does(vilt):
    model = transformers.ViltForQuestionAnswering.from_pretrained(vilt).eval()
    torch.nn.init.normal_(model.vilt.embeddings.position_embeddings)
    batch = {"input_ids": torch.tensor([[2, 5, 6, 3]] * 2), "attention_mask": torch.ones(2, 4, dtype=torch.long)}
    for size in ((32, 32), (24, 40)):
        batch["image"] = torch.randn(2, 3, *size)
        inputs = {name: part for name, part in batch.items() if name != "image"}
        with torch.no_grad():
            want = model(**inputs, pixel_values=batch["image"]).logits
            got = AnswerQuestions(model).ask(batch).logits
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_an_exported_graph_answers_as_the_run(run, table, tmp_path):
    done = saccade.export(run, out=tmp_path)
    assert done.files[0].parity.same == 1
    assert (tmp_path / "tokenizer.json").is_file()
    lines = [f"{table.parent / name}\tis the film bright" for name in ("bright.png", "dark.png")]
    for got, want in zip(shares(tmp_path / "model.onnx", lines), shares(run, lines), strict=True):
        assert got == pytest.approx(want, abs=1e-5)


@pytest.mark.slow
def test_broadcasting_on_image_and_text_is_compared(vilt, table, tmp_path):
    options = {"epochs": 1, "batch_size": 8, "img_size": 32, "device": "cpu", "seeds": 2}
    arms = ["base", "image:=broadcast:scale=true,tokens=image", "text:=broadcast:scale=true,tokens=text"]
    result = saccade.compare(str(table), task="vqa", model=str(vilt), arms=arms, out=tmp_path / "out", **options)
    assert result.metric == "score"
    assert (tmp_path / "out" / "report.html").is_file()


def test_models_that_write_their_answers_are_refused(table, tmp_path):
    transformers.BlipConfig().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="choose from vilt"):
        saccade.train(str(table), task="vqa", model=str(tmp_path), quiet=True)


def test_answers_are_worth_what_people_agree_on(tmp_path):
    assert read_answers("Yes", tmp_path, 1) == {"yes": 1.0}
    assert read_answers("yes|" * 9 + "no", tmp_path, 1) == {"yes": 1.0, "no": pytest.approx(0.3)}
    people = read_answers("yes|no|Yes|yes", tmp_path, 1)  # three people and one, of whom each is left out once
    assert people == {"yes": pytest.approx((3 * 2 / 3 + 1) / 4), "no": pytest.approx(3 * (1 / 3) / 4)}
    assert read_answers("no=1|maybe=0.3", tmp_path, 1) == {"no": 1.0, "maybe": 0.3}


@pytest.mark.parametrize(("agreed", "score"), [(0, 0), (1, 0.3), (2, 0.6), (3, 0.9), *((n, 1.0) for n in range(4, 11))])
def test_score_is_the_mean_over_the_sets_of_nine_of_ten_people(agreed, score):
    others = [f"other {n}" for n in range(10 - agreed)]
    assert agreement([*["yes"] * agreed, *others]).get("yes", 0) == pytest.approx(score)


def test_the_answer_of_one_person_alone_is_right():
    assert agreement(["yes"]) == {"yes": 1.0}


def test_targets_are_soft_and_questions_of_an_image_stay_together(table):
    data = open_samples("vqa", DataConfig(path=str(table)))[1]
    assert data.train.targets.rows[0].tolist() == pytest.approx([0.25, 0.75])  # of no and yes, by three of four people
    assert data.train.sample(0).inputs["text"] == "is the film bright"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([("dark.png", "is it", "", "train")], "row 1 has no answer"),
        ([("dark.png", "", "yes", "train")], "empty image or question"),
        ([("dark.png", "is it", "yes=2", "train")], "number from 0 to 1"),
        ([("dark.png", "is it", "Yes=1|no=0.3| yes =0.6", "train")], "row 1 gives the answer 'yes' two scores"),
        ([("dark.png", "is it", "yes=1|no", "train")], "give either every answer of a row a score"),
        ([("dark.png", "is it", "yes", "train"), ("dark.png", "is it", "yes", "train")], "has 1 possible answer"),
        ([("dark.png", "is it", "yes", "learn")], "train, val or test"),
        ([("dark.png", "is it", "yes", "val")], "train, val or test"),
        ([("dark.png", "is it", "yes", "train"), ("dark.png", "is it", "", "val")], "row 2 has no answer"),
        ([("dark.png", "is it", "yes", "train"), ("dark.png", "", "no", "val")], "row 2 has an empty"),
    ],
)
def test_bad_questions_are_refused(tmp_path, rows, told):
    with pytest.raises(ValueError, match=told):
        open_samples("vqa", DataConfig(path=str(write_questions(tmp_path, rows))))


def test_splits_have_several_names(tmp_path):
    named = ("Training", "train", "validation", "test")
    rows = [("dark.png", "is it", ("yes", "no", "no", "")[n], name) for n, name in enumerate(named)]
    data = open_samples("vqa", DataConfig(path=str(write_questions(tmp_path, rows))))[1]
    assert (len(data.train), len(data.val), data.outputs) == (2, 1, ("no", "yes"))


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
    assert "1 rare answers are excluded" in data.notes
    assert {data.val.name(n) for n in range(len(data.val))}.isdisjoint(
        data.train.name(n) for n in range(len(data.train))
    )
