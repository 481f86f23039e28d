"""Numbers: reading, scale, distances, answers, and a run from a list to its page."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from saccade.building.build import load_model
from saccade.data.spec import InputSpec
from saccade.runs.run import Run
from saccade.settings import ConfigError, DataConfig, TrainConfig, overlay
from saccade.tasks import Regress
from saccade.tasks.numbers import NumberMetrics, explained, rank_correlation
from saccade.tasks.opening import open_samples
from saccade.tasks.regression.task import RegressOptions
from saccade.training.train import train
from support.lists import numbers_list, write_images, write_list
from support.trainings import assert_same_end, settings, train_with_kills

SPEC = InputSpec(("age",), 3, 16, [0.5] * 3, [0.5] * 3, task="regress", extra={"mean": [40.0], "std": [8.0]})
RANDOM = torch.Generator().manual_seed(0)


def data_of(path, task=None):
    return open_samples(task, DataConfig(path=str(path)))


def plain(**more):
    return settings(augment__mixup=0.0, augment__cutmix=0.0, **more) | {
        "augment.crop": "none",
        "augment.repeats": 1,
        "augment.rand_ops": 0,
        "augment.erase": 0.0,
    }


# Data


def test_list_of_numbers_says_itself_that_it_is_one(tmp_path):
    choice, data = data_of(numbers_list(tmp_path))
    assert choice.kind is Regress
    assert data.outputs == ("level",)
    assert data.train.targets.rows.shape == (60, 1)
    assert data.train.targets.describe(0).startswith("level ")


def test_columns_are_chosen_by_name_and_others_are_told_of(tmp_path):
    rows = [{**row, "note": "text"} for row in write_images(tmp_path)]
    path = write_list(tmp_path / "list.csv", rows, ("level", "red", "note"))
    _, data = data_of(path, "regress")
    assert data.outputs == ("level", "red")
    assert "columns with values that are not numbers are ignored: 'note'" in data.notes
    _, one = data_of(path, "regress:columns=[level]")
    assert one.outputs == ("level",)


@pytest.mark.parametrize("cell", ["", "nan", "inf", "tall", "1e99"])
def test_cell_that_is_no_number_is_refused_with_its_row(tmp_path, cell):
    rows = write_images(tmp_path)
    rows[4]["level"] = cell
    with pytest.raises(ValueError, match=rf"row 5 has '{cell}' in the column 'level', which is not a finite number"):
        data_of(write_list(tmp_path / "list.csv", rows, ("level",)), "regress:columns=[level]")


def test_column_that_is_the_same_everywhere_is_refused(tmp_path):
    rows = [{**row, "level": "5"} for row in write_images(tmp_path)]
    with pytest.raises(ValueError, match="'level' have the same number everywhere"):
        data_of(write_list(tmp_path / "list.csv", rows, ("level",)), "regress")


def test_held_out_samples_cover_the_range(tmp_path):
    rows = write_images(tmp_path, train=80, val=0)
    path = tmp_path / "list.csv"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, ["path", "level"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    _, data = data_of(path)
    low, high = (np.quantile(data.train.targets.rows, q) for q in (0.25, 0.75))
    assert (data.val.targets.rows < low).any()
    assert (data.val.targets.rows > high).any()


# Loss and numbers


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [("mse", lambda d: d**2), ("l1", abs), ("huber", lambda d: 0.5 * d**2 if abs(d) < 1 else abs(d) - 0.5)],
)
def test_loss_is_in_deviations_of_the_training_numbers(loss, wanted):
    task = Regress.build(nn.Identity(), SPEC, options=RegressOptions(loss=loss))
    found = task({"image": torch.tensor([[0.25], [3.0]]), "target": torch.tensor([[40.0], [44.0]])})["loss"]
    assert found.item() == pytest.approx((wanted(0.25) + wanted(2.5)) / 2)


def test_numbers_equal_independent_ones():
    answer, truth = np.random.default_rng(0).normal(size=(2, 50, 2))
    truth = truth + answer
    pairs = np.stack([answer, truth], axis=1)
    r2 = [
        1 - np.square(truth[:, c] - answer[:, c]).sum() / np.square(truth[:, c] - truth[:, c].mean()).sum()
        for c in (0, 1)
    ]
    assert explained(pairs) == pytest.approx(np.mean(r2))
    rho = [stats.spearmanr(answer[:, c], truth[:, c]).statistic for c in (0, 1)]
    assert rank_correlation(pairs) == pytest.approx(np.mean(rho))
    assert rank_correlation(np.stack([np.zeros((9, 1)), truth[:9, :1]], axis=1)) == 0.0


def test_distances_of_one_column_are_in_its_unit_and_of_several_in_deviations():
    for std, divided in (([8.0], [1.0]), ([8.0, 2.0], [8.0, 2.0])):
        metrics = NumberMetrics(replace(SPEC, outputs=SPEC.outputs * len(std), extra={"std": std}))
        answer, truth = torch.randn(12, len(std), generator=RANDOM), torch.randn(12, len(std), generator=RANDOM)
        batch = {"target": truth, "place": torch.arange(12)}
        metrics.update({"value": answer, "loss": torch.zeros(12)}, batch)
        off = (answer - truth) / torch.tensor(divided)
        assert metrics.compute()["mae"] == pytest.approx(off.abs().mean().item(), rel=1e-6)
        assert metrics.compute()["rmse"] == pytest.approx(off.square().mean().sqrt().item(), rel=1e-6)


def test_what_is_made_for_classes_is_left_out_and_told():
    config = overlay(TrainConfig(), {"augment.mixup": 0.2, "augment.cutmix": 1.0, "loss.smoothing": 0.1})
    found, notes = Regress.adapt(config)
    assert (found.augment.mixup, found.augment.cutmix, found.loss.smoothing) == (0.0, 0.0, 0.0)
    assert notes == ["mixup, cutmix, smoothing: turned off, because numbers are not classes"]
    with pytest.raises(ConfigError, match="numbers have no classes"):
        Regress.adapt(overlay(config, {"loss.class_weights": "balanced"}))


# Answers


def test_answers_are_in_the_numbers_own_unit():
    rows = Regress.codec(SPEC).read_output(np.array([[0.5], [-1.0]], np.float32))
    assert rows[:, 0].tolist() == [44.0, 32.0]
    answer = Regress.presenter(SPEC).describe(rows[0])
    assert answer.text == "age 44"
    assert answer.record["values"] == {"age": 44.0}
    assert Regress.presenter(SPEC).table_rows(answer) == [[44.0]]


# Runs


def test_run_learns_its_numbers_and_shows_them(tmp_path):
    values = plain(schedule__epochs=40, optim__lr=0.01, model__drop_path=0.0)
    values |= {"keep.every_steps": None, "keep.evaluate_every": 20}
    trained = train(str(numbers_list(tmp_path)), out=tmp_path / "run", settings=values, quiet=True)
    run = Run.open(tmp_path / "run")
    scores = run.scores()
    assert trained.metric == "mae"
    assert scores.metrics["mae"].combine(scores.columns) == pytest.approx(trained.score, rel=1e-6)
    assert trained.metrics["val_r2"] > 0.5
    page = run.report.read_text()
    assert "Predictions against truth" in page
    assert "Always the median" in page
    model, spec = load_model(tmp_path / "run")
    assert spec.extra["std"][0] == pytest.approx(8.5, abs=1.5)
    assert sum(p.numel() for p in model.get_classifier().parameters()) < 100


@pytest.mark.slow
def test_killed_run_ends_as_one_that_was_not(tmp_path):
    data, values = numbers_list(tmp_path), plain(schedule__epochs=2)
    assert train_with_kills(tmp_path / "whole", data, values, []) == [0]
    assert train_with_kills(tmp_path / "killed", data, values, [("step", 3), ("shard", 2)]) == [-9, -9, 0]
    assert_same_end(tmp_path / "killed", tmp_path / "whole")


def test_auxiliary_losses_go_around_any_task(tmp_path):
    vit = {
        "model.name": "vit_tiny_patch16_224",
        "model.options": {"embed_dim": 16, "depth": 1, "num_heads": 2, "patch_size": 4},
    }
    values = (
        plain(schedule__epochs=1)
        | vit
        | {"model.plugins": ["broadcast", "drloc:schedule=constant", "second_order:head_dim=4"]}
    )
    trained = train(str(numbers_list(tmp_path)), out=tmp_path / "run", settings=values, quiet=True)
    assert np.isfinite(trained.score)
    with pytest.raises(
        ConfigError, match="the plug-in token_label learns classes from a teacher and does not support the task regress"
    ):
        train(
            str(tmp_path / "numbers.csv"),
            out=tmp_path / "no",
            settings=values | {"model.plugins": ["token_label"]},
            quiet=True,
        )


def test_data_check_reads_lists_of_any_task(tmp_path, capsys):
    from saccade.cli import main
    from support.lists import labels_list

    assert main(["data", "check", str(numbers_list(tmp_path / "numbers"))]) == 0
    assert "1 columns" in capsys.readouterr().out
    assert main(["data", "check", str(labels_list(tmp_path / "labels")), "--task", "multilabel"]) == 0
    assert "3 labels" in capsys.readouterr().out
