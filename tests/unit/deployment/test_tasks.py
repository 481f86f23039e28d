"""Predict, export and serve for tasks that are not classes: several labels, numbers, and one of another package."""

import csv
import io
import json
import math
import os
import shutil
from dataclasses import replace

import httpx
import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from saccade.commands.export import as_table
from saccade.data.spec import InputSpec
from saccade.deployment.app import create_app
from saccade.deployment.browse import RunIndex
from saccade.deployment.bundle import Bundle, ExportError
from saccade.deployment.export import export
from saccade.deployment.judge import Score, score_loss
from saccade.deployment.predict import predict
from saccade.deployment.predictor import Predictor, open_predictor
from saccade.deployment.serve import _open
from saccade.deployment.writers import write_predictions
from saccade.runs.run import Run
from saccade.tasks import Answer, Classify, Codec, MetricSpec, Presenter, Task
from saccade.tasks.registering import TASKS
from support.exports import BUNDLE, CLASSES, COLUMNS, colourful, tiny_onnx, trained_run
from support.serving import running

LABELS = tuple(sorted(CLASSES))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    return folder, colourful(folder)


@pytest.fixture(scope="module")
def labels(images, tmp_path_factory):
    return trained_run(tmp_path_factory.mktemp("runs") / "labels", images[0] / "labels.csv")


@pytest.fixture(scope="module")
def numbers(images, tmp_path_factory):
    return trained_run(tmp_path_factory.mktemp("runs") / "numbers", images[0] / "numbers.csv")


@pytest.fixture(scope="module")
def exported(labels, numbers):
    return {run.name: export(run, formats=["onnx", "pt2"], half=True, int8=True) for run in (labels, numbers)}


def table(run, files, tmp_path):
    write_predictions(predict(run, files), out=tmp_path / "o.csv")
    with open(tmp_path / "o.csv", newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_a_table_of_labels_has_those_said_and_a_share_for_each(labels, images, tmp_path):
    (tmp_path / "bad.png").write_text("x")
    head, *rows, bad = table(labels, [*images[1][:4], tmp_path / "bad.png"], tmp_path)
    assert head == ["name", "labels", *LABELS, "problem"]
    predictor = open_predictor(labels)
    limits = predictor.spec.extra["thresholds"]
    for row in rows:
        shares = [float(cell) for cell in row[2:5]]
        said = {name for name, share, limit in zip(LABELS, shares, limits, strict=True) if share >= limit}
        assert set(filter(None, row[1].split("|"))) == said
        assert row[5] == ""
    assert bad[1:5] == [""] * 4
    assert bad[5]


def test_a_table_of_numbers_has_them_in_their_own_units(numbers, images, tmp_path):
    head, *rows = table(numbers, images[1][:4], tmp_path)
    assert head == ["name", "brightness", "'-redness", "problem"]  # a name that a spreadsheet would run is kept from it
    got = np.array([row[1:3] for row in rows], dtype=float)
    spec = open_predictor(numbers).spec
    assert (np.abs(got - spec.extra["mean"]) < 2 * np.array(spec.extra["std"])).all()
    assert (got[:, 1] < 0).all()  # a negative number is a number, not a formula


@pytest.mark.parametrize("run", ["labels", "numbers"])
def test_lines_of_json_are_the_tasks_record(run, request, images, tmp_path):
    files = images[1][:3]
    predictions = list(predict(request.getfixturevalue(run), files))
    write_predictions(predict(request.getfixturevalue(run), files), out=tmp_path / "o.jsonl")
    lines = list(map(json.loads, (tmp_path / "o.jsonl").read_text().splitlines()))
    for line, file, prediction in zip(lines, files, predictions, strict=True):
        assert line == {"name": str(file), **prediction.answer.record}
    keys = {"labels": {"name", "answer", "labels", "probabilities", "shares"}, "numbers": {"name", "answer", "values"}}
    assert set(lines[0]) == keys[run]


@pytest.mark.parametrize("run", ["labels", "numbers"])
def test_answers_are_drawn_with_bars_for_shares_alone(run, request, images, tmp_path):
    target = request.getfixturevalue(run)
    write_predictions(predict(target, images[1][:2], keep=True), draw=tmp_path / "drawn")
    names = sorted(os.listdir(tmp_path / "drawn"))
    assert [name[:7] for name in names] == ["0000000", "0000001"]
    with Image.open(tmp_path / "drawn" / names[0]) as image:
        below = np.asarray(image).astype(int)[140:]
    blue = (below[..., 2] - below[..., 0] > 15).any()
    assert blue == (run == "labels")


def test_number_predictions_have_no_shares_and_labels_do(labels, numbers, images):
    (one,) = predict(numbers, images[1][0])
    assert one.answers == ()
    assert set(one.answer.record["values"]) == set(COLUMNS)
    (other,) = predict(labels, images[1][0])
    assert {name for name, _ in other.answers} == set(CLASSES)


@pytest.mark.parametrize(("run", "output"), [("labels", "logits"), ("numbers", "values")])
def test_an_exported_file_answers_as_the_run_does(run, output, request, exported, images):
    target = request.getfixturevalue(run)
    model = onnx.load(str(target / "export" / "model.onnx"))
    assert [value.name for value in model.graph.output] == [output]
    eager = list(predict(target, images[1][:5]))
    for name in ("model.onnx", "model.pt2"):
        opened = open_predictor(target / "export" / name, trust=True)
        assert opened.task is open_predictor(target).task
        assert opened.spec.extra == open_predictor(target).spec.extra
        for got, want in zip(predict(opened, images[1][:5]), eager, strict=True):
            assert [row[0] for row in got.answer.rows] == [row[0] for row in want.answer.rows]
            assert got.answer.text == want.answer.text
            np.testing.assert_allclose(_numbers(got.answer), _numbers(want.answer), rtol=1e-3)


def _numbers(answer):
    return answer.record.get("shares") or list(answer.record["values"].values())


@pytest.mark.parametrize(
    ("run", "metric", "words"),
    [("labels", "map", "mean_average_precision"), ("numbers", "mae", "mean_absolute_error")],
)
def test_exports_are_judged_by_the_tasks_own_metric(run, metric, words, request, exported):
    done = exported[run]
    summary = Run.open(request.getfixturevalue(run)).summary()
    assert done.metric.name == metric
    assert done.samples == summary["validation"]["samples"]
    assert done.score == pytest.approx(summary[f"val_{metric}"], rel=1e-5)
    card = json.loads((request.getfixturevalue(run) / "export" / "export.json").read_text())
    assert card[words] == done.score
    assert card["metric"]["name"] == metric
    assert [file.precision for file in done.files] == ["float32", "float32", "float16", "int8"]
    for file in done.files:
        assert file.parity.same == 1.0
        assert file.loss.value == pytest.approx(0, abs=0.05)
        assert (file.loss.low is None) == (run == "labels")  # average precision is no mean of images
    shown = as_table(done.files, done.metric)
    assert metric in [column.header for column in shown.columns]


def test_what_is_lost_is_positive_where_the_exported_model_is_worse():
    error = MetricSpec("mae", "mean absolute error", larger_is_better=False)
    eager, exported = np.array([1.0, 2.0, 3.0]), np.array([1.5, 2.5, 3.75])
    loss = score_loss(Score(error, 2.0, eager), Score(error, 31 / 12, exported))
    assert loss.value == pytest.approx(7 / 12)
    half = 4.302653 * np.std(exported - eager, ddof=1) / math.sqrt(3)
    assert (loss.low, loss.high) == pytest.approx((7 / 12 - half, 7 / 12 + half))
    wrong = MetricSpec("wrong", "share of mistakes", larger_is_better=False, share=True)
    eager, exported = np.array([0, 0, 0, 1], dtype=np.uint8), np.array([1, 1, 0, 1], dtype=np.uint8)
    loss = score_loss(Score(wrong, 0.25, eager), Score(wrong, 0.75, exported))
    assert loss.value == 0.5
    assert loss.low < 0.5 < loss.high
    right = MetricSpec("map", "mean average precision", share=True)
    assert score_loss(Score(right, 0.75, None), Score(right, 0.5, None)).value == 0.25


@pytest.fixture(scope="module")
def address(labels, numbers):
    with running(create_app([_open(run, device="cpu", trust=False) for run in (labels, numbers)])) as address:
        yield address


def send(address, file, **fields):
    files = {"file": (file.name, file.read_bytes(), "image/png")}
    return httpx.post(f"{address}/predict", files=files, data=fields, timeout=30)


@pytest.mark.parametrize("run", ["labels", "numbers"])
def test_the_server_answers_with_the_record_and_rows_of_any_task(run, request, address, images):
    target = request.getfixturevalue(run)
    told = send(address, images[1][5], model=run).json()
    (want,) = predict(target, images[1][5])
    assert (told["model"], told["task"]) == (run, open_predictor(target).task.name)
    assert set(want.answer.record) < set(told)
    assert told["text"] == want.answer.text
    assert [row["name"] for row in told["rows"]] == [name for name, _, _ in want.answer.rows]
    assert [row["said"] for row in told["rows"]] == [name in want.answer.said for name, _, _ in want.answer.rows]
    if run == "numbers":
        assert all(row["share"] is None and "probability" not in row for row in told["rows"])
        assert told["values"] == pytest.approx(want.answer.record["values"], rel=1e-4)
    else:
        assert all(0 <= row["probability"] <= 1 for row in told["rows"])


def test_the_server_lists_tasks_and_outputs(address):
    labels, numbers = httpx.get(f"{address}/model").json()["models"]
    assert (labels["task"], labels["outputs"], labels["labels"]) == ("multilabel", list(LABELS), list(LABELS))
    assert (numbers["task"], numbers["outputs"], numbers["columns"]) == ("regress", list(COLUMNS), list(COLUMNS))
    assert "classes" not in labels | numbers


def test_a_regress_file_without_its_scale_is_refused(exported, numbers):
    told = json.loads(open_predictor(numbers / "export" / "model.onnx").bundle.to_json())
    assert Bundle.from_json(json.dumps(told), source="here").extra == told["extra"]
    for extra in ({}, [], None, {"mean": [1.0], "std": [1.0]}, {**told["extra"], "std": ["a", 1]}):
        with pytest.raises(ExportError, match="description is damaged"):
            Bundle.from_json(json.dumps({**told, "extra": extra}), source="here")
    for wrong in ({"extra": {"mean": [0, math.nan], "std": [1, 1]}}, {"task": 3}, {"columns": ["a", "b"]}):
        with pytest.raises(ExportError, match="description is damaged"):
            Bundle.from_json(json.dumps(told | wrong), source="here")
    with pytest.raises(ExportError, match="for an unknown task"):
        Bundle.from_json(json.dumps({**told, "task": "juggle"}), source="here")


def test_labels_by_thresholds_that_are_none_are_refused():
    bundle = replace(BUNDLE, task="multilabel", extra={"thresholds": [0.5, 0.5, 0.5]})
    assert Bundle.from_json(bundle.to_json(), source="here") == bundle
    for limits in ([0.5], "abc", [0.5, 0.5, None]):
        with pytest.raises(ExportError, match="one per label"):
            Bundle.from_json(replace(bundle, extra={"thresholds": limits}).to_json(), source="here")


def test_an_old_description_that_knows_classes_alone_is_read():
    told = json.loads(BUNDLE.to_json())
    for name in ("outputs", "task", "extra"):
        del told[name]
    assert Bundle.from_json(json.dumps(told), source="here") == BUNDLE


def test_a_graph_with_another_output_than_its_task_has_is_refused(tmp_path):
    bundle = replace(BUNDLE, task="regress", extra={"mean": [0.0] * 3, "std": [1.0] * 3})
    with pytest.raises(ExportError, match="not written by saccade"):
        open_predictor(tiny_onnx(tmp_path / "model.onnx", bundle=bundle))


def test_runs_are_listed_with_their_own_metric(labels, numbers):
    first, second = RunIndex(runs=[labels, numbers]).items()
    assert first.facts["score"]["words"] == "mean average precision"
    assert first.facts["score"]["share"]
    assert second.facts["score"]["words"] == "mean absolute error"
    assert second.facts["score"]["text"].endswith("deviations")
    assert second.facts["val_mae"] == second.facts["score"]["value"]


@pytest.mark.parametrize("change", [{"task": "juggle"}, {"primary": "x"}, {"val_mae": "x"}, {"val_mae": None}])
def test_a_run_whose_metric_is_not_known_is_listed_without_it(numbers, tmp_path, change):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(numbers / "config.yaml", run)
    (run / "summary.json").write_text(json.dumps(json.loads((numbers / "summary.json").read_text()) | change))
    (item,) = RunIndex(runs=[run]).items()
    assert item.finished
    assert "score" not in item.facts


class SpanCodec(Codec):
    output = "span"


class SpanPresenter(Presenter):
    def describe(self, row, *, top=5):
        low, high = (round(float(value), 2) for value in row)
        return Answer(f"{low} to {high}", (("low", f"{low}", None), ("high", f"{high}", None)), {"span": [low, high]})

    def table_rows(self, answer, *, top=5):
        return [answer.record["span"]]


class Span(Task):
    """A task of another package: the darkest and the brightest of an image's channels."""

    codec = SpanCodec
    presenter = SpanPresenter


class Spans(Predictor):
    def __init__(self):
        super().__init__("spans", "module", bundle=replace(BUNDLE, task="span", outputs=("low", "high")))

    def outputs(self, images):
        means = images.float().mean((2, 3))
        return torch.stack([means.amin(1), means.amax(1)], dim=1).numpy()


def test_a_task_of_another_package_is_predicted_and_served(images, tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS._found, "span", Span)
    predictor = Spans()
    head, row = table(predictor, images[1][1], tmp_path)
    assert head == ["name", "low", "high", "problem"]
    write_predictions(predict(predictor, images[1][1], keep=True), out=tmp_path / "o.jsonl", draw=tmp_path / "drawn")
    line = json.loads((tmp_path / "o.jsonl").read_text())
    assert line["span"] == pytest.approx([float(cell) for cell in row[1:3]], rel=1e-4)
    assert len(os.listdir(tmp_path / "drawn")) == 1
    with running(create_app([(predictor, None)])) as address:
        told = send(address, images[1][1]).json()
        (about,) = httpx.get(f"{address}/model").json()["models"]
    assert told["task"] == about["task"] == "span"
    assert about["outputs"] == ["low", "high"]
    assert told["span"] == line["span"]
    assert [row["text"] for row in told["rows"]] == [f"{value}" for value in line["span"]]
    assert Bundle.from_json(predictor.bundle.to_json(), source="here") == predictor.bundle


def test_an_answer_that_is_no_number_is_null_in_json(tmp_path):
    spec = InputSpec(CLASSES, 3, 8, [0.5] * 3, [0.5] * 3)
    answer = Classify.presenter(spec).describe(np.full(3, np.nan))
    assert {text for _, text, _ in answer.rows} == {"not a number"}
    image = np.zeros((20, 20, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    (tmp_path / "a.png").write_bytes(file.getvalue())
    predictor = Spans.__new__(Spans)
    Predictor.__init__(predictor, "none", "module", bundle=BUNDLE)
    predictor.outputs = lambda images: np.full((len(images), 3), np.nan, np.float32)
    write_predictions(predict(predictor, tmp_path, keep=True), out=tmp_path / "o.jsonl", draw=tmp_path / "drawn")
    assert json.loads((tmp_path / "o.jsonl").read_text())["answers"][0]["share"] is None
