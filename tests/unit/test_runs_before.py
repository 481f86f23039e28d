"""Runs of the version before, of tasks with targets of their own: they answer, measure and resume as they did there."""

import json
import shutil
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import saccade
from saccade.cli import main
from saccade.training.report import rewrite_report
from support.bits import machine

HERE = Path(__file__).parents[1]
sys.path.insert(0, str(HERE / "compat"))
import write_runs  # noqa: E402


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """The runs, and the sets that they name."""
    home = tmp_path_factory.mktemp("before")
    with tarfile.open(HERE / "golden" / "runs_before.tar.xz") as archive:
        archive.extractall(home, filter="data")
    write_runs.sets(home / "sets")
    for config in home.glob("*/config.yaml"):
        config.write_text(config.read_text().replace("SETS", str(home / "sets")))
    return home


def close(ours, theirs):
    """Compare what JSON holds, numbers to six digits."""
    if isinstance(theirs, dict):
        assert ours.keys() >= theirs.keys()
        for key in theirs:
            close(ours[key], theirs[key])
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            close(one, other)
    else:
        assert ours == (pytest.approx(theirs, rel=1e-4, abs=1e-5) if isinstance(theirs, float) else theirs)


@pytest.mark.parametrize("task", write_runs.TASKS)
def test_an_image_gets_the_answer_that_it_got(task, before, tmp_path):
    asked = (before / task, write_runs.image(before / "sets", task), "--out", tmp_path / "now.jsonl")
    assert main(["predict", *map(str, asked)]) == 0
    now, known = (
        json.loads(file.read_text()) for file in (tmp_path / "now.jsonl", before / task / "predictions.jsonl")
    )
    del now["name"], known["name"]
    close(now, known)


@pytest.mark.parametrize("task", write_runs.TASKS)
def test_metrics_of_the_validation_images_are_those_on_record(task, before):
    known = json.loads((before / task / "summary.json").read_text())
    found = saccade.evaluate(before / task, quiet=True).metrics()
    primary = known["primary"]
    assert found[primary] == pytest.approx(known[f"val_{primary}"], rel=1e-4)
    assert len(saccade.explain(before / task, [write_runs.image(before / "sets", task)]).samples) == 1
    assert primary in rewrite_report(before / task).read_text().lower()


@pytest.mark.parametrize("task", write_runs.KILLED)
def test_a_killed_run_ends_as_the_one_that_was_not(task, before, tmp_path):
    run = shutil.copytree(before / f"{task}_killed", tmp_path / "run")
    saccade.train(resume=run, quiet=True)
    ours, theirs = (load_file(one / "model.safetensors") for one in (run, before / task))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if machine() == (before / "machine.txt").read_text():
            assert torch.equal(value, theirs[name]), name
        torch.testing.assert_close(value, theirs[name], rtol=1e-3, atol=1e-4)
    ours, theirs = (json.loads((one / "summary.json").read_text()) for one in (run, before / task))
    assert "frame" not in ours["validation"]  # masks are still counted in the square
    assert ours[f"val_{ours['primary']}"] == pytest.approx(theirs[f"val_{ours['primary']}"], rel=1e-3)
