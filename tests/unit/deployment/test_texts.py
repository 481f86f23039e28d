"""Models of texts: evaluated, asked, exported, served and explained like any other."""

import csv
import io
import json
import sys

import httpx
import numpy as np
import pytest
import torch

import saccade
from saccade.deployment.app import create_app
from saccade.deployment.bundle import ExportError
from saccade.deployment.explaining import Explainer
from saccade.deployment.predict import predict
from saccade.deployment.predictor import open_predictor
from saccade.deployment.serve import _open
from saccade.runs.run import Run
from support.serving import Brightness, image, running
from support.texts import PLAIN, make_model, sentences, write_cola, write_tsv

HEAD = "second_order:num_heads=1,head_dim=4"
TEXTS = ["the film is good", "a dull song , and very bad"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("text")
    data, model = write_cola(root / "cola"), make_model(root / "bert", layers=1)
    options = {"epochs": 1, "batch_size": 8, "lr": 1e-2, "device": "cpu", "quiet": True}
    return saccade.train(str(data), task="text", model=str(model), plugins=[HEAD], out=root / "run", **options).path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    root = tmp_path_factory.mktemp("pairs")
    rows = [[str(n), text, "a film", label] for n, (text, label) in enumerate(sentences(24))]
    write_tsv(root / "rte" / "train.tsv", ["index", "sentence1", "sentence2", "label"], rows)
    model = make_model(root / "gpt", "gpt")
    options = {"epochs": 1, "batch_size": 8, "device": "cpu", "quiet": True}
    return saccade.train(
        str(root / "rte"), task="text", model=str(model), plugins=[HEAD], out=root / "run", **options
    ).path


@pytest.fixture(scope="module")
def graph(run, tmp_path_factory):
    return saccade.export(run, out=tmp_path_factory.mktemp("export") / "made")


def shares(target, texts):
    return [dict(one.answers) for one in predict(target, texts)]


def close(first, second):
    return all(abs(a[name] - b[name]) < 1e-5 for a, b in zip(first, second, strict=True) for name in a)


def test_evaluation_gives_matthews_with_an_interval(run, tmp_path):
    found = saccade.evaluate(run, quiet=True, out=tmp_path / "out").runs["run"].metrics["matthews"]
    assert found.value == pytest.approx(Run.open(run).summary()["val_matthews"])
    assert found.low <= found.value <= found.high
    other = write_cola(tmp_path / "other", dev=20) / "dev.tsv"
    assert saccade.evaluate(run, other, quiet=True).samples == 20
    with pytest.raises(ValueError, match="occlusions and corruptions need images"):
        saccade.evaluate(run, robust=True, quiet=True)


def test_lines_tables_standard_input_and_texts_themselves_are_asked_alike(run, tmp_path, monkeypatch):
    want = shares(run, TEXTS)
    assert want[0] != want[1]
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS) + "\n\n")
    with (tmp_path / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "Sentence"], *([n, text] for n, text in enumerate(TEXTS))])
    (tmp_path / "table.jsonl").write_text("".join(json.dumps({"sentence": text}) + "\n" for text in TEXTS))
    for name in ("lines.txt", "table.csv", "table.jsonl"):
        assert close(shares(run, tmp_path / name), want)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(TEXTS).encode())))
    assert close(shares(run, "-"), want)


def test_a_text_that_is_too_long_is_named_and_the_others_are_answered(run):
    found = list(predict(run, [TEXTS[0], " ".join(PLAIN * 6), TEXTS[1]]))
    assert [one.problem is None for one in found] == [True, False, True]
    assert "more tokens than the maximum of 32" in found[1].problem


def test_wrong_questions_are_refused(run, pairs, tmp_path):
    (tmp_path / "other.csv").write_text("words\na film\n")
    with pytest.raises(ValueError, match="the model was trained on sentence"):
        list(predict(run, tmp_path / "other.csv"))
    with pytest.raises(FileNotFoundError):
        list(predict(run, "missing.txt"))
    with pytest.raises(ValueError, match="--draw needs images, but the model reads texts; remove it"):
        predict(run, TEXTS, keep=True)
    assert "trained on two texts" in next(predict(pairs, ["a film"])).problem
    assert next(predict(pairs, ["a film\tthe song"])).problem is None


@pytest.mark.slow
def test_a_decoder_of_pairs_is_exported(pairs, tmp_path):
    check_graph(saccade.export(pairs, out=tmp_path), pairs, end="\ta film")


def test_an_exported_graph_takes_any_length_and_answers_as_the_run(graph, run):
    check_graph(graph, run)


def check_graph(done, path, end=""):
    """Ask a graph about texts of several lengths."""
    file = done.files[0].path
    assert file.with_name("tokenizer.json").is_file()
    assert done.files[0].parity.same == 1
    texts = [f"{' '.join(PLAIN[:1] * n)}{end}" for n in (1, 2, 5, 13, 20)]
    assert close(shares(file, texts), shares(path, texts))
    session = pytest.importorskip("onnxruntime").InferenceSession(str(file))
    shapes = [one.shape for one in session.get_inputs()]
    assert all(not isinstance(side, int) for shape in shapes for side in shape)


def test_what_an_export_of_texts_cannot_be_is_refused(run, tmp_path):
    with pytest.raises(ExportError, match="float32"):
        saccade.export(run, half=True, out=tmp_path)


def test_a_graph_that_was_changed_is_refused(graph, tmp_path):
    onnx = pytest.importorskip("onnx")
    model = onnx.load(str(graph.files[0].path))
    told = next(entry for entry in model.metadata_props if entry.key == "saccade")
    about = json.loads(told.value)
    about["extra"]["tokens"]["pad"] = "x"
    told.value = json.dumps(about)
    onnx.save(model, str(tmp_path / "model.onnx"))
    with pytest.raises(ExportError, match="damaged"):
        open_predictor(tmp_path / "model.onnx")


def test_server_takes_texts_and_shows_what_words_do(run, pairs):
    models = [_open(run, device="cpu", trust=False), _open(pairs, device="cpu", trust=False), (Brightness(), None)]
    with running(create_app(models)) as address, httpx.Client(base_url=address, timeout=60) as client:
        about = client.get("/model").json()["models"]
        assert [(one["reads"], one["texts"]) for one in about] == [("text", 1), ("text", 2), ("image", 0)]
        answers = [client.post("/predict", files={"text": (None, text)}).json() for text in TEXTS]
        want = shares(run, TEXTS)
        assert all(abs(a["share"] - max(w.values())) < 1e-5 for a, w in zip(answers, want, strict=True))
        two = {"text": (None, "a film"), "pair": (None, "the song"), "model": (None, "1")}
        assert client.post("/predict", files=two).status_code == 200
        for files, told in (
            ({"text": (None, "a film"), "model": (None, "1")}, "pair is empty"),
            ({"text": (None, "a film"), "pair": (None, "b")}, "reads one text"),
            ({"text": (None, " ")}, "text is empty"),
            ({"text": (None, " ".join(PLAIN * 6))}, "more tokens than the maximum of 32"),
            ({"text": (None, "a film"), "model": (None, "2")}, "reads images"),
            ({"file": ("a.png", image(), "image/png")}, "text is empty"),
            ({"model": (None, "0")}, "a text in a field `text`"),
            ({"text": (None, "a" * 70_000)}, "the limit is 65536"),
        ):
            refused = client.post("/predict", files=files)
            assert refused.status_code in (400, 422), files
            assert told in refused.json()["detail"]
        assert (
            client.post("/predict", files={"model": (None, "2"), "file": ("a.png", image(), "image/png")}).status_code
            == 200
        )
        views = client.post("/explain", files={"text": (None, TEXTS[0])}).json()["views"]
        words = next(view for view in views if view["key"] == "words")
        assert [figure["key"] for figure in words["figures"]] == ["words", "words-class", "words-words"]
        assert 'id="text"' in client.get("/").text


def test_several_texts_of_other_lengths_share_a_batch(run):
    opened = open_predictor(run)
    packed = [opened.codec.pack_text((text,), name="x") for text in ("good", *TEXTS)]
    rows = opened.rows(opened.codec.stack(packed))
    alone = np.concatenate([opened.rows(opened.codec.stack([one])) for one in packed])
    np.testing.assert_allclose(rows, alone, atol=1e-5)


@pytest.mark.parametrize("method", ["gradient", "integrated"])
def test_a_run_is_explained_by_its_own_tokenizer(run, method, tmp_path):
    found = saccade.explain(run, TEXTS[0], views=["words"], method=method)
    (view,) = found.samples[0].views
    told = [[entry["word"] for entry in figure.numbers["words"]] for figure in view.figures]
    assert told == [["[CLS]", "the", "film", "is", "good", "[SEP]"]] * 3
    page = found.save(tmp_path / "page").read_text()
    assert page.count('class="sentence"') == 3


def test_explainer_of_the_server_takes_a_text(run):
    assert isinstance(Explainer(run)._explain(TEXTS[0], ["words"])["views"], list)
    assert torch.is_inference_mode_enabled() is False
