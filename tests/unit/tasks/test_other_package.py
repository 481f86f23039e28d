"""A task, a reader and a plug-in of another package, found by their entry points: every verb takes them."""

import io
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.fresh import command, run
from support.trainings import TINY, assert_same_end, environment, train_with_kills, weights

PACKAGE = Path(__file__).parents[2] / "packages" / "halves"
SETTINGS = {
    "model.options": TINY,
    "optim.batch_size": 4,
    "optim.least_steps": None,
    "augment.mixup": 0.0,
    "augment.cutmix": 0.0,
    "loss.smoothing": 0.0,
    "augment.flip": 0.0,
    "schedule.epochs": 6,
    "keep.every_steps": 1,
    "engine.threads": 1,
}


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE), prepend=os.pathsep)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PACKAGE), prepend=os.pathsep)
        out = tmp_path_factory.mktemp("halves") / "run"
        assert train_with_kills(out, "halves:five", SETTINGS, []) == [0]
    return out


def saccade(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "saccade.cli", *map(str, words)],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
        timeout=300,
        **options,
    )


def sets():
    return [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={json.dumps(value)}")]


def image(left, right):
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:, :8], pixels[:, 8:] = left, right
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_killed_run_of_another_task_ends_as_one_that_was_not(trained, tmp_path):
    assert train_with_kills(tmp_path / "killed", "halves:five", SETTINGS, [("step", 2), ("step", 2)]) == [-9, -9, 0]
    assert_same_end(tmp_path / "killed", trained)
    summary = json.loads((trained / "summary.json").read_text())
    assert (summary["task"], summary["primary"]) == ("halves", "relative")
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"train_near", "val_relative", "val_loss"} <= last.keys()
    assert "relative error" in (trained / "report.html").read_text().lower()


@pytest.mark.slow
def test_arms_of_another_task_are_compared_with_an_interval(tmp_path):
    arms = ["--arm", "base", "--arm", "dim:weight=0.5", "--seeds", "3", "--set", "schedule.epochs=2"]
    words = ["compare", "halves:five", *sets(), *arms, "--out", tmp_path / "comparison", "--device", "cpu", "--json"]
    done = saccade(*words)
    result = json.loads(done.stdout)
    assert result["metric"] == "relative"
    difference = result["differences"]["dim:weight=0.5"]["difference"]
    assert difference["low"] < difference["mean"] < difference["high"]
    assert difference["larger_is_better"] is False
    assert difference["n_samples"] == 5
    assert (tmp_path / "comparison" / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_answers_of_another_task_are_written_and_served(trained, tmp_path):
    (tmp_path / "a.png").write_bytes(image(200, 20))
    table = saccade("predict", trained, tmp_path / "a.png").stdout.splitlines()
    assert table[0] == "name,left,right,problem"
    log = tmp_path / "log.txt"
    with open(log, "w") as file:
        server = subprocess.Popen(
            [sys.executable, "-m", "saccade.cli", "serve", str(trained), "--port", "0"],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(PYTHONUNBUFFERED="1"),
        )
    try:
        address = wait_for(log)
        request = urllib.request.Request(
            f"{address}/predict", data=image(200, 20), headers={"Content-Type": "image/png"}
        )
        answer = json.loads(urllib.request.urlopen(request, timeout=60).read())
        assert answer["task"] == "halves"
        assert answer["answer"] in ("left", "right")
        assert set(answer["values"]) == {"left", "right"}
        assert [row["name"] for row in answer["rows"]] == ["left", "right"]
    finally:
        server.terminate()
        server.wait(30)


def wait_for(log):
    for _ in range(300):
        found = re.search(r"http://[\d.]+:\d+", log.read_text())
        if found:
            return found[0]
        time.sleep(0.2)
    raise AssertionError(log.read_text())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--task", "halve"], "did you mean 'halves'"),
        pytest.param(["--plugin", "dim:wait=1"], "its options are weight", marks=pytest.mark.slow),
        pytest.param(["--task", "multilabel"], "is a dataset for halves", marks=pytest.mark.slow),
    ],
)
def test_names_of_other_packages_are_known_and_their_options_checked(words, told, tmp_path):
    words = ["train", "halves:five", *words, "--out", str(tmp_path / "run"), "--device", "cpu", *sets()]
    assert run(command, words, log=tmp_path / "log.txt") == 2
    assert told in " ".join((tmp_path / "log.txt").read_text().split())


@pytest.mark.slow
def test_a_models_plug_in_and_a_view_of_another_package_are_used(tmp_path):
    run = tmp_path / "run"
    words = ["--plugin", "scale_tokens:start=0.5", "--device", "cpu", "--quiet", "--set", "schedule.epochs=1"]
    saccade("train", "halves:five", *sets(), *words, "--out", run)
    scales = [value for name, value in weights(run).items() if "scale_tokens" in name]
    assert scales
    assert all(0.3 < float(value.mean()) < 0.7 for value in scales)
    (tmp_path / "a.png").write_bytes(image(200, 20))
    saccade("explain", run, tmp_path / "a.png", "--views", "mean", "--out", tmp_path / "page")
    assert "Mean colour" in (tmp_path / "page" / "index.html").read_text()
