"""Detectors as people use them from beginning to end: compared with intervals, evaluated, asked as graphs."""

import json

import numpy as np
import pytest

import saccade
from saccade.cli import main
from support.objects import make_objects

pytestmark = pytest.mark.slow
TINY = {"keep.ema": None, "data.workers": 0, "augment.jitter": 0.1}


def train(data, out, head):
    return saccade.train(
        str(data),
        task="detect:scale=[0.9,1.1],least=0.001",
        model="resnet10t",
        epochs=3,
        batch_size=4,
        img_size=64,
        out=out,
        device="cpu",
        settings={**TINY, "model.head": head},
        quiet=True,
    )


@pytest.mark.parametrize("head", ["retinanet:width=16,depth=1", "atss:width=16,depth=1,groups=4"])
def test_graph_of_a_detector_answers_as_the_run_does(tmp_path, head):
    pytest.importorskip("onnxruntime")
    data = make_objects(tmp_path / "set", train=8)
    run = train(data, tmp_path / "run", head)
    done = saccade.export(run.path)
    assert done.files[0].parity.same == 1.0
    images = data / "images" / "val"
    own, graph = (
        [one.answer.record["objects"] for one in saccade.predict(target, images)]
        for target in (run.path, done.folder / "model.onnx")
    )
    assert any(own)
    for mine, theirs in zip(own, graph, strict=True):
        assert len(mine) == len(theirs)
        scores = [[one["score"] for one in some] for some in (mine, theirs)]
        np.testing.assert_allclose(*scores, atol=1e-3)


def test_detectors_are_compared_and_evaluated_with_intervals(tmp_path, capsys):
    data = make_objects(tmp_path / "set", train=8, val=4)
    asked = [
        "compare",
        str(data),
        "--task",
        "detect:scale=[0.9,1.1],least=0.01",
        "--model",
        "resnet10t",
        "--arm",
        "base",
    ]
    asked += ["--arm", "drloc", "--seeds", "2", "--epochs", "2", "--batch-size", "4", "--img-size", "64"]
    asked += [
        "--set",
        "model.head=retinanet:width=16,depth=1",
        "--set",
        "data.workers=0",
        "--out",
        str(tmp_path / "cmp"),
    ]
    assert main(asked) == 0
    result = json.loads((tmp_path / "cmp" / "result.json").read_text())
    difference = result["differences"]["drloc"]
    assert difference["low"] <= difference["high"]
    assert difference["verdict"]
    assert "average precision" in (tmp_path / "cmp" / "report.html").read_text()
    run = next((tmp_path / "cmp" / "runs").glob("base*/seed-0"))
    capsys.readouterr()
    assert main(["evaluate", str(run), "--out", str(tmp_path / "ev"), "--quiet"]) in (0, None)
    found = json.loads((tmp_path / "ev" / "evaluation.json").read_text())["runs"]
    numbers = found[0]["metrics"]["ap"]
    assert numbers["low"] <= numbers["value"] <= numbers["high"]
