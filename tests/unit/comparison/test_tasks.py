"""Comparisons of tasks that are no classification, from the images to the page."""

import json
import re
import shlex

import numpy as np
import pytest

from saccade.comparison.compare import compare, plan_comparison
from saccade.comparison.conclude.evidence import read_evidence
from saccade.comparison.conclude.measure import Measure
from saccade.comparison.plan import timing
from saccade.comparison.plan.request import Request, resolve_metric
from saccade.statistics import statistic_difference
from saccade.tasks.multilabel.metrics import mean_average_precision
from saccade.training.pace import Pace
from support.comparisons import TINY
from support.lists import labels_list, numbers_list
from support.markup import parse

SETTINGS = {"model.options": TINY, "optim.batch_size": 16, "data.img_size": 16, "data.workers": 0, "engine.threads": 1}
PACE = Pace(startup=1.0, step=0.1, validation=1.0, steps=3, how="told by the test")


def options(out, **more):
    found = {"arms": ["base", "broadcast"], "seeds": 2, "epochs": 1, "out": out, "settings": SETTINGS, "device": "cpu"}
    return {**found, "quiet": True, **more}


@pytest.fixture(scope="module", autouse=True)
def clock():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "time_probe", lambda *_: PACE)
        yield


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
    root = tmp_path_factory.mktemp("labels")
    data = labels_list(root, train=32, val=24)
    return data, compare(str(data), **options(root / "c"))


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    root = tmp_path_factory.mktemp("numbers")
    data = numbers_list(root, train=32, val=24)
    return data, compare(str(data), **options(root / "c", task="regress:loss=l1"))


def test_labels_are_compared_in_the_metric_they_are_judged_by(labels):
    _, result = labels
    assert (result.metric, result.primary, result.binary) == ("map", "map", ())
    assert result.differences["broadcast"].difference.share
    assert not result.differences["broadcast"].difference.right_or_wrong
    for arm in result.arms:
        ended = [json.loads((path / "summary.json").read_text())["val_map"] for path in arm.runs.values()]
        assert list(arm.scores) == pytest.approx(ended)


def test_difference_of_a_statistic_is_that_of_the_runs_records(labels):
    _, result = labels
    arms = {arm.name: read_evidence(arm.runs) for arm in result.arms}
    records = [[scores.columns["map"] for scores in arms[name].samples.values()] for name in ("base", "broadcast")]
    expected = statistic_difference(*records, mean_average_precision, share=True)
    found = result.differences["broadcast"].difference
    assert (found.mean, found.low, found.high) == (expected.mean, expected.low, expected.high)
    assert found.n_samples == 24
    specs = list(result.metrics.values())
    alone = Measure(arms, resolve_metric(Request(arms=(), paired=False), specs, "map")).difference("base", "broadcast")
    assert (alone.design, alone.mean) == ("unpaired", pytest.approx(found.mean))
    these = Measure(arms, resolve_metric(Request(arms=(), seeds_fixed=True), specs, "map")).difference(
        "base", "broadcast"
    )
    assert (these.design, these.mean) == ("fixed", pytest.approx(found.mean))


def test_other_numbers_of_labels_have_the_directions_of_their_specs(labels):
    _, result = labels
    assert set(result.other) == {"val_loss", "val_f1_micro", "val_f1_macro"}
    found = {name: arms["broadcast"].larger_is_better for name, arms in result.other.items()}
    assert found == {"val_loss": False, "val_f1_micro": True, "val_f1_macro": True}


def test_images_of_labels_are_shown_by_their_loss_with_their_truth(labels):
    _, result = labels
    assert result.sample_metric == "loss"
    gains, losses = result.gains_and_losses("broadcast")
    assert all(one.arm < one.reference for one in gains)
    assert all(one.arm > one.reference for one in losses)
    assert {part for one in gains + losses for part in one.label.split(", ")} <= {"red", "green", "blue", "no label"}
    assert result.classes == {"broadcast": ()}


def test_pages_of_labels_speak_of_their_metric(labels):
    _, result = labels
    text = (result.path / "result.md").read_text()
    assert "the loss of each, averaged over the runs." in text
    assert "| Sample | Right answer | base | broadcast |" in text
    assert "### Mean average precision at equal time" in text
    assert "unknown until runs are finished, as the variance of mean average precision is not known" in text
    page = parse((result.path / "report.html").read_text(encoding="utf-8"))
    words = {row[0]: row[2] for row in page.rows("mean average precision on 24 validation samples")}["broadcast"]
    assert words.startswith("Its mean average precision is ") or words.startswith("It scores the same")
    if words.startswith("Its"):
        assert " points " in words.split(",")[0]
    told = page.all("main")[0].text
    assert "Mean average precision in validation, by epoch" in told
    assert "One point is one part in a hundred" in told
    assert "right for" not in told
    assert "broadcast is better than base" in told
    assert page.all("img")


def test_result_holds_what_its_metrics_mean(labels):
    _, result = labels
    found = json.loads((result.path / "result.json").read_text())
    assert found["metrics"] == {name: spec.to_dict() for name, spec in result.metrics.items()}
    assert (found["primary"], found["metrics"]["map"]["combine"]) == ("map", "statistic")


def test_a_comparison_of_labels_goes_on_and_answers_other_questions(labels):
    data, result = labels
    again = compare(str(data), **options(result.path))
    assert again.plan.finished == 4
    assert again.to_dict()["differences"] == result.to_dict()["differences"]
    f1 = compare(str(data), **options(result.path, metric="f1_macro"))
    assert f1.metric == "f1_macro"
    assert "val_map" in f1.other
    page = re.sub("<[^>]+>", "", (f1.path / "report.html").read_text(encoding="utf-8"))
    assert "--metric f1_macro" in page
    with pytest.raises(ValueError, match="the task measures loss, map, f1_micro, f1_macro"):
        compare(str(data), **options(result.path, metric="top1"))


def test_numbers_are_compared_by_distance_less_is_better(numbers):
    _, result = numbers
    judged = result.differences["broadcast"].difference
    assert (result.metric, judged.larger_is_better, judged.share) == ("mae", False, False)
    runs = {arm.name: read_evidence(arm.runs).samples.values() for arm in result.arms}
    means = [np.mean([scores.columns["mae"].astype(float) for scores in found]) for found in runs.values()]
    assert [arm.mean for arm in result.arms] == pytest.approx(means)
    assert judged.mean == pytest.approx(means[1] - means[0])
    assert result.sample_metric == "mae"
    gains, _ = result.gains_and_losses("broadcast")
    assert all(one.arm < one.reference and one.label.startswith("level ") for one in gains)


def test_pages_of_numbers_tell_no_points(numbers):
    _, result = numbers
    text = (result.path / "result.md").read_text()
    assert "Mean mean absolute error" not in text
    assert "unknown until runs are finished, as the variance of mean absolute error is not known" in text
    page = parse((result.path / "report.html").read_text(encoding="utf-8"))
    told = page.all("main")[0].text
    words = {row[0]: row[2] for row in page.rows("mean absolute error on 24 validation samples")}["broadcast"]
    assert words.startswith("Its mean absolute error is ")
    assert "Points: " not in told
    assert "100 points" not in told
    assert "Left of it is better" in told
    assert "Mean absolute error in validation, by epoch" in told


def test_the_task_is_kept_where_it_was_told_and_asked_again(numbers, labels):
    _, result = numbers
    asked = json.loads((result.path / "comparison.json").read_text())["request"]
    assert asked["settings"]["task"] == "regress:loss=l1"
    page = parse((result.path / "report.html").read_text(encoding="utf-8"))
    words = shlex.split(next(pre.text for pre in page.all("pre") if pre.text.startswith("saccade compare")))
    assert words[words.index("--task") + 1] == "regress:loss=l1"
    assert "task" not in json.loads((labels[1].path / "comparison.json").read_text())["request"]["settings"]


def test_losses_of_a_task_can_be_arms_and_other_tasks_cannot(numbers, tmp_path):
    data, _ = numbers
    found = plan_comparison(str(data), **options(tmp_path / "a", arms=["base", "far:=task=regress:loss=mse"]))
    assert dict(found.arm("far").changes) == {"task": (None, "regress:loss=mse")}
    assert all(check.equal for check in found.arm("far").checks)
    found = plan_comparison(str(data), **options(tmp_path / "b", arms=["base", "other:=task=multilabel"]))
    assert "label columns hold 0 and 1" in str(found.arm("other").failed)
