"""What earlier versions wrote: runs, unfinished ones, exports and comparisons still open, and give the same answers."""

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import saccade
from saccade.building.build import load_model
from saccade.data.open import open_data
from saccade.runs.run import Run
from saccade.settings import families
from saccade.training.report import rewrite_report

ARCHIVE = Path(__file__).parents[1] / "golden" / "written_before.tar.gz"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def before(unpacked, tmp_path):
    shutil.copytree(unpacked, tmp_path / "before")
    return tmp_path / "before"


def test_run_opens_with_its_classes_and_answers_as_it_did(before):
    model, spec = load_model(before / "run")
    assert (spec.task, len(spec.outputs), spec.img_size) == ("classify", 10, 16)
    kept = load_file(before / "run" / "predictions.safetensors")
    source = open_data("").val
    images = torch.stack([spec.framing(source.read(place)) for place in range(64)]).float() / 255
    images = (images - torch.tensor(spec.mean)[:, None, None]) / torch.tensor(spec.std)[:, None, None]
    with torch.no_grad():
        logits = model(images)
    # Validation resizes arrays by torch, files by PIL: a little apart.
    assert (logits.argmax(1) == kept["prediction"][:64]).float().mean() > 0.9


def test_scores_are_read_from_the_answers_that_were_kept(before):
    run = Run.open(before / "run")
    scores = run.scores()
    assert scores.primary == "top1"
    assert scores.metrics["top1"].combine(scores.columns) == pytest.approx(run.summary()["val_top1"])
    assert scores.metrics["loss"].combine(scores.columns) == pytest.approx(run.summary()["val_loss"], rel=1e-5)
    assert len(scores.places) == 1000


def test_report_is_written_again(before):
    page = rewrite_report(before / "run").read_text()
    for title in ("Accuracy by class", "Confusions", "Confidence", "The worst images", "7.2%"):
        assert title in page


def test_unfinished_run_ends_as_one_that_was_never_stopped(before):
    saccade.train(resume=before / "stopped", quiet=True)
    ours, theirs = (load_file(before / name / "model.safetensors") for name in ("stopped", "run"))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():  # in other last bits: that version had other arithmetic on the CPU
        torch.testing.assert_close(value, theirs[name], rtol=1e-3, atol=1e-4)
    assert (before / "stopped" / "scores.safetensors").exists()


def test_predict_takes_run_and_export(before):
    image = before / "image.png"
    from PIL import Image

    Image.fromarray(np.full((28, 28, 3), 90, np.uint8)).save(image)
    shares = [
        next(iter(saccade.predict(target, image)))
        for target in (before / "run", before / "run" / "export" / "model.onnx")
    ]
    first, second = ({name: share for name, _, share in one.answer.rows} for one in shares)
    assert list(first) == list(second)
    assert list(first.values()) == pytest.approx(list(second.values()), abs=1e-5)


def test_evaluate_and_explain_take_a_run(before, tmp_path):
    result = saccade.evaluate(before / "run", limit=64, quiet=True)
    assert 0 <= result.metrics()["top1"] <= 1
    explained = saccade.explain(before / "run", [np.full((28, 28, 3), 90, np.uint8)], views=["gradcam"])
    assert len(explained.samples[0].answer) == 5


def test_comparison_goes_on_with_its_finished_runs(before, monkeypatch):
    monkeypatch.setattr(families, "_families", lambda _: {})  # numbers of a family would make it another comparison
    old = json.loads((before / "comparison" / "result.json").read_text())
    options = {"embed_dim": 16, "depth": 1, "num_heads": 2, "patch_size": 7}
    settings = {"data.train_limit": 64, "optim.batch_size": 32, "model.options": options, "engine.threads": 1}
    runs = {path: path.stat().st_mtime_ns for path in before.rglob("comparison/runs/*/seed-*/model.safetensors")}
    result = saccade.compare(
        arms=["base", "broadcast"],
        seeds=2,
        epochs=1,
        model="vit_tiny",
        settings=settings | {"keep.states": 1},
        out=before / "comparison",
        quiet=True,
        device="cpu",
    )
    assert len(runs) == 4
    assert {path: path.stat().st_mtime_ns for path in runs} == runs  # none was trained again
    found, known = result.differences["broadcast"].difference, old["differences"]["broadcast"]["difference"]
    assert (found.mean, found.low, found.high) == pytest.approx((known["mean"], known["low"], known["high"]))
