"""Several labels a sample: reading, loss, numbers, thresholds, and a run from a list to its page."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchmetrics.functional.classification import multilabel_average_precision, multilabel_f1_score

from saccade.data.augment import Mix
from saccade.data.spec import InputSpec
from saccade.runs.run import Run
from saccade.settings import ConfigError, LossConfig
from saccade.tasks import Multilabel
from saccade.tasks.multilabel.codec import SoftLabels
from saccade.tasks.multilabel.data import LabelTargets
from saccade.tasks.multilabel.metrics import (
    MultilabelMetrics,
    average_precision,
    choose_thresholds,
    decide_crossed,
    macro_f1,
    mean_average_precision,
    metric_specs,
    micro_f1,
)
from saccade.tasks.multilabel.task import MultilabelOptions
from saccade.tasks.opening import choose_task, open_samples
from saccade.training.train import train
from support.lists import LABELS, labels_list, write_images, write_list
from support.trainings import assert_same_end, settings, train_with_kills

SPEC = InputSpec(LABELS, 3, 16, [0.5] * 3, [0.5] * 3, task="multilabel")
RANDOM = torch.Generator().manual_seed(0)


def data_of(path, task=None, **more):
    from saccade.settings import DataConfig

    return open_samples(task, DataConfig(path=str(path), **more))


def run_settings(**more):
    return settings(schedule__epochs=2, **more) | {"augment.crop": "pad", "augment.repeats": 1, "augment.flip": 0.0}


# Data


def test_column_of_names_and_columns_of_zeros_and_ones_are_the_same_labels(tmp_path):
    rows = write_images(tmp_path)
    choice, joined = data_of(write_list(tmp_path / "joined.csv", rows, ("labels",)))
    other, apart = data_of(write_list(tmp_path / "apart.csv", rows, ("blue", "green", "red")))
    assert choice.kind is other.kind is Multilabel
    assert joined.outputs == apart.outputs == ("blue", "green", "red")
    for part in ("train", "val"):
        np.testing.assert_array_equal(getattr(joined, part).targets.rows, getattr(apart, part).targets.rows)
    assert joined.train.targets.describe(0) == ", ".join(sorted(rows[0]["labels"].split("|")))


def test_columns_are_chosen_by_name_where_a_list_has_others(tmp_path):
    path = write_list(tmp_path / "list.csv", write_images(tmp_path), ("red", "green", "level"))
    _, data = data_of(path, "multilabel:columns=[green,red]")
    assert data.outputs == ("green", "red")
    with pytest.raises(ValueError, match=r"row 1 has '.*' in the column 'level'; label columns hold 0 and 1"):
        data_of(path, "multilabel")
    with pytest.raises(ValueError, match=r"it needs the columns 'blue', as requested"):
        data_of(path, "multilabel:columns=[blue]")


def test_rare_labels_are_held_out_too(tmp_path):
    rows = [{**row, "split": "train"} for row in write_images(tmp_path, train=60, val=0)]
    for row in rows:
        row["labels"] = "|".join(
            filter(None, [row["labels"], "rare" if row["path"].endswith(("7.png", "3.png")) else ""])
        )
    path = tmp_path / "list.csv"
    write_list(path, rows, ("labels",))
    path.write_text("\n".join(",".join(line.split(",")[:2]) for line in path.read_text().splitlines()))
    _, data = data_of(path, val_share=0.2)
    rare = data.outputs.index("rare")
    assert data.train.targets.rows[:, rare].sum() > 0
    assert data.val.targets.rows[:, rare].sum() > 0
    assert len(data.val) == pytest.approx(12, abs=3)


def test_labels_that_only_validation_has_are_refused(tmp_path):
    rows = write_images(tmp_path)
    rows[-1]["labels"] = "violet"
    with pytest.raises(ValueError, match=r"the split 'val' has labels that 'train' lacks: 'violet'"):
        data_of(write_list(tmp_path / "list.csv", rows, ("labels",)))


def test_set_without_any_label_is_refused():
    with pytest.raises(ValueError, match="no sample has any of the labels"):
        LabelTargets(np.zeros((4, 2), np.uint8), ("a", "b")).require("the set")


def test_validation_labels_in_another_order_are_put_right():
    targets = LabelTargets(np.array([[1, 0], [0, 1]], np.uint8), ("b", "a"))
    assert targets.aligned(("a", "b", "c")).rows.tolist() == [[0, 1, 0], [1, 0, 0]]
    with pytest.raises(ValueError, match="do not have: 'b'"):
        targets.aligned(("a", "c"))


def test_set_of_classes_is_not_taken_for_labels(tmp_path):
    from support.trainings import png_folder

    with pytest.raises(ConfigError, match=r"multilabel was given, but .* is a dataset for classify"):
        data_of(png_folder(tmp_path / "data"), "multilabel")


# Loss


def test_binary_cross_entropy_is_the_mean_over_labels_and_weights_count_present_ones():
    logits, targets = torch.randn(6, 3, generator=RANDOM), torch.randint(0, 2, (6, 3), generator=RANDOM)
    task = Multilabel(nn.Identity())
    wanted = F.binary_cross_entropy_with_logits(logits, targets.float())
    torch.testing.assert_close(task({"image": logits, "target": targets})["loss"], wanted)
    counts = torch.tensor([2, 5, 20])
    weighted = Multilabel.build(
        nn.Identity(),
        SPEC,
        options=MultilabelOptions(),
        loss=LossConfig(class_weights="balanced"),
        counts=counts,
        total=20,
    )
    torch.testing.assert_close(weighted.positive_weights, torch.tensor([9.0, 3.0, 0.05]))


def test_asymmetric_loss_is_the_published_formula():
    logits, targets = torch.randn(50, 4, generator=RANDOM) * 3, torch.randint(0, 2, (50, 4), generator=RANDOM).float()
    options = MultilabelOptions(loss="asymmetric", gamma_pos=1.0, gamma_neg=4.0, clip=0.05)
    p = logits.double().sigmoid()
    pm = (p - 0.05).clamp(min=0)  # the shifted probability
    positive = (1 - p) ** 1 * p.log()
    negative = pm**4 * (1 - pm).log()
    wanted = -(targets * positive + (1 - targets) * negative).mean()
    found = Multilabel(nn.Identity(), options=options)({"image": logits, "target": targets})["loss"]
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-7)


def test_mixed_images_have_mixed_labels_and_smoothing_draws_to_a_half():
    labels = torch.tensor([[1, 0], [0, 1]], dtype=torch.uint8)
    mix = Mix(torch.tensor([1, 0]), torch.tensor([0.75, 1.0]))
    torch.testing.assert_close(SoftLabels()(labels, mix), torch.tensor([[0.75, 0.25], [0.0, 1.0]]))
    torch.testing.assert_close(SoftLabels(0.1)(labels, None), torch.tensor([[0.95, 0.05], [0.05, 0.95]]))


# Numbers


def test_mean_average_precision_equals_an_independent_one_ties_included():
    shares = torch.rand(200, 5, generator=RANDOM).mul(20).round().div(20)  # many are equal
    labels = (torch.rand(200, 5, generator=RANDOM) < 0.3).int()
    records = np.stack([shares.numpy(), labels.numpy()], axis=1)
    wanted = multilabel_average_precision(shares, labels, num_labels=5, average="macro", thresholds=None)
    assert mean_average_precision(records) == pytest.approx(wanted.item(), abs=1e-6)
    assert average_precision(np.array([0.9, 0.8, 0.1]), np.array([1, 0, 1])) == pytest.approx((1 + 2 / 3) / 2)


def test_f1_equals_an_independent_one():
    said, labels = ((torch.rand(100, 4, generator=RANDOM) < 0.4).int() for _ in range(2))
    records = (2 * labels + said).numpy().astype(np.uint8)
    for own, how in ((micro_f1, "micro"), (macro_f1, "macro")):
        wanted = multilabel_f1_score(said.float(), labels, num_labels=4, average=how)
        assert own(records) == pytest.approx(wanted.item(), abs=1e-6)


def test_thresholds_are_those_of_the_highest_f1():
    shares = np.random.default_rng(1).random((60, 3)).astype(np.float32)
    labels = (shares + np.random.default_rng(2).normal(0, 0.3, shares.shape) > 0.6).astype(np.uint8)
    found = choose_thresholds(shares, labels)
    for column in range(3):

        def f1(limit, column=column):
            said, there = shares[:, column] >= limit, labels[:, column] > 0
            return 2 * (said & there).sum() / (said.sum() + there.sum())

        best = max(f1(limit) for limit in np.linspace(0, 1, 2001))
        assert f1(found[column]) == pytest.approx(best)
    assert choose_thresholds(shares, np.zeros_like(labels)).tolist() == [0.5] * 3


def test_thresholds_are_never_chosen_on_the_samples_they_are_judged_by():
    shares = np.random.default_rng(0).random((40, 1)).astype(np.float32)
    labels = np.random.default_rng(1).integers(0, 2, (40, 1)).astype(np.uint8)
    first = decide_crossed(shares, labels)
    changed = labels.copy()
    changed[0::2] = 1 - changed[0::2]
    # What is decided of the even samples hangs on the labels of the odd ones alone.
    np.testing.assert_array_equal(decide_crossed(shares, changed)[0::2], first[0::2])


def test_scores_combine_to_the_numbers():
    metrics = MultilabelMetrics(SPEC)
    logits, labels = torch.randn(30, 3, generator=RANDOM), torch.randint(0, 2, (30, 3), generator=RANDOM)
    metrics.update({"output": logits}, {"target": labels, "place": torch.arange(30)})
    scores = {name: value.numpy() for name, value in metrics.scores().items()}
    assert metrics.compute() == {one.name: one.combine(scores) for one in metrics.specs}
    assert metrics.compute()["loss"] == pytest.approx(
        F.binary_cross_entropy_with_logits(logits, labels.float()).item(), rel=1e-5
    )


# Answers


def test_labels_are_said_from_their_own_thresholds_on():
    spec = InputSpec(LABELS, 3, 16, [0.5] * 3, [0.5] * 3, task="multilabel", extra={"thresholds": [0.9, 0.1, 0.5]})
    row = Multilabel.codec(spec).read_output(np.log(np.array([[0.8, 0.2, 0.4]]) / (1 - np.array([[0.8, 0.2, 0.4]]))))[0]
    answer = Multilabel.presenter(spec).describe(row)
    assert answer.text == "green"
    assert answer.record["answer"] == ["green"]
    (cells,) = Multilabel.presenter(spec).table_rows(answer)
    assert dict(zip(Multilabel.presenter(spec).table_head(), cells, strict=True)) == {
        "labels": "green",
        "red": pytest.approx(0.8),
        "green": pytest.approx(0.2),
        "blue": pytest.approx(0.4),
    }


def test_options_are_checked():
    assert choose_task("multilabel:loss=asymmetric,gamma_neg=2").options.gamma_neg == 2
    for text, told in (
        ("multilabel:los=bce", "did you mean 'loss'"),
        ("multilabel:loss=mse", "'bce' or 'asymmetric'"),
        ("multilable", "did you mean 'multilabel'"),
    ):
        with pytest.raises(ConfigError, match=told):
            choose_task(text)


# Runs


def test_run_learns_its_labels_and_keeps_thresholds_scores_and_a_page(tmp_path):
    values = settings(schedule__epochs=25, augment__mixup=0.0, augment__cutmix=0.0)
    values |= {
        "augment.crop": "none",
        "augment.repeats": 1,
        "augment.rand_ops": 0,
        "augment.erase": 0.0,
        "optim.lr": 0.01,
        "model.drop_path": 0.0,
        "keep.every_steps": None,
        "keep.evaluate_every": 5,
    }
    trained = train(str(labels_list(tmp_path)), out=tmp_path / "run", settings=values, quiet=True)
    assert trained.metric == "map"
    assert trained.score > 0.85
    run = Run.open(tmp_path / "run")
    scores = run.scores()
    assert scores.primary == "map"
    assert scores.metrics["map"].combine(scores.columns) == pytest.approx(trained.score, abs=1e-6)
    assert scores.names[0] == "images/060.png"
    page = run.report.read_text()
    assert "Label by label" in page
    assert "mean average precision" in page.lower()
    from saccade.building.build import load_model

    _, spec = load_model(tmp_path / "run")
    assert len(spec.extra["thresholds"]) == 3
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["primary"] == "map"


@pytest.mark.slow
def test_killed_run_ends_as_one_that_was_not(tmp_path):
    data = labels_list(tmp_path)
    assert train_with_kills(tmp_path / "whole", data, run_settings(), []) == [0]
    assert train_with_kills(tmp_path / "killed", data, run_settings(), [("step", 3), ("record", 2)]) == [-9, -9, 0]
    assert_same_end(tmp_path / "killed", tmp_path / "whole")


def test_patience_follows_the_direction_of_the_metric(tmp_path, monkeypatch):
    from saccade.training.loop import Loop

    held = []
    monkeypatch.setattr(Loop, "_keep_best", lambda self: held.append(self.best))
    loop = Loop.__new__(Loop)
    loop.run, loop.best, loop.stale = Run(tmp_path), None, 0
    loop.primary = metric_specs(None)[0]  # the loss: smaller is better
    for value, stale in ((2.0, 0), (2.5, 1), (1.0, 0), (1.0, 1)):
        loop._update_best(value)
        assert loop.stale == stale
    assert held == [2.0, 1.0]


@pytest.mark.parametrize("option", ["gamma_neg=2", "gamma_pos=1", "clip=0.1"])
def test_numbers_of_the_asymmetric_loss_are_refused_without_it(option):
    with pytest.raises(ConfigError, match=rf"{option.partition('=')[0]} only applies to loss=asymmetric"):
        choose_task(f"multilabel:{option}")
