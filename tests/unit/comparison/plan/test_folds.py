"""Passes over folds joined to one row a seed."""

import json

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

import saccade
from saccade.comparison.page.report import read_records
from saccade.comparison.plan.folds import STRIDE, fold_runs
from saccade.runs.run import Run
from saccade.runs.scores import read_tensors
from saccade.settings import ConfigError
from support.trainings import png_folder


def test_no_two_trainings_of_a_comparison_share_their_seed():
    found = [piece for seed in (0, 1, 7) for piece in fold_runs(seed, 5, 3)]
    assert len({piece.seed for piece in found}) == len(found) == 45
    assert [piece.seed for piece in fold_runs(3, None)] == [3]
    with pytest.raises(ConfigError, match="below"):
        list(fold_runs(STRIDE, 5))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folds")
    data = png_folder(folder / "set", train=18, val=3)
    torch.manual_seed(0)
    save_file(timm.create_model("test_efficientnet").state_dict(), folder / "weights.safetensors")
    result = saccade.compare(
        str(data),
        arms=["base", "lr=0.01"],
        seeds=2,
        folds=3,
        model="test_efficientnet",
        checkpoint=folder / "weights.safetensors",
        epochs=1,
        img_size=32,
        batch_size=6,
        device="cpu",
        out=folder / "compared",
        settings={"data.workers": 0},
        quiet=True,
    )
    return result, folder / "compared"


def test_every_sample_is_answered_once_a_seed_by_trainings_without_it(compared):
    result, path = compared
    assert result.plan.samples == 18
    assert result.plan.runs == 12
    assert [arm.seeds for arm in result.arms] == [(0, 1), (0, 1)]
    assert result.differences["lr=0.01"].difference.n_samples == 18
    for file in (path / "out_of_fold").iterdir():
        kept = read_tensors(file)
        assert kept["place"].tolist() == list(range(18))
    means = [float(read_tensors(path / "out_of_fold" / f"base-seed-{s}.safetensors")["correct"].mean()) for s in (0, 1)]
    assert result.arm("base").scores == pytest.approx(means)
    assert "in 3 folds" in result.to_markdown()
    assert json.loads((path / "comparison.json").read_text())["request"]["folds"] == 3


def test_learning_curves_are_those_of_all_folds(compared):
    result, path = compared
    curve = read_records(result)["base"][1]
    runs = [Run(run).metrics()[-1] for k in range(3) for run in path.glob(f"runs/base-*/seed-{1 + STRIDE * k}")]
    assert len(runs) == 3
    assert len({run["val_loss"] for run in runs}) == 3
    assert curve[-1]["val_loss"] == pytest.approx(sum(run["val_loss"] for run in runs) / 3)
    assert curve[-1]["step"] == sum(run["step"] for run in runs)


def test_the_same_request_finds_its_runs_and_other_folds_are_another_comparison(compared):
    _, path = compared
    request = json.loads((path / "comparison.json").read_text())["request"]
    given = {"arms": ["base", "lr=0.01"], "seeds": 2, "model": "test_efficientnet", "epochs": 1, "img_size": 32}
    given |= {"batch_size": 6, "device": "cpu", "out": path, "quiet": True, "settings": {"data.workers": 0}}
    given["checkpoint"] = request["settings"]["model.checkpoint"]
    again = saccade.compare(request["data"], folds=3, **given)
    assert again.plan.finished == 12
    with pytest.raises(ValueError, match="folds = 3 there, 4 requested"):
        saccade.compare(request["data"], folds=4, **given)


def test_a_runs_settings_are_judged_over_folds(compared, tmp_path):
    _, path = compared
    run = next((path / "runs").glob("base-*/seed-0"))
    found = saccade.cross_validate(run, folds=2, seeds=2, out=tmp_path / "folds", device="cpu", quiet=True)
    assert found.samples == 18
    assert found.seeds == (0, 1)
    one = found.metrics["top1"]
    assert one.low <= one.mean <= one.high
    kept = [read_tensors(file)["correct"].mean() for file in sorted((found.path / "out_of_fold").iterdir())]
    assert found.score == pytest.approx(np.mean(kept))
    assert "accuracy" in found.to_markdown()
