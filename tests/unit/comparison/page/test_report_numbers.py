"""Numbers on the page of a comparison: points, units, directions, and ends of intervals."""

from dataclasses import replace

import numpy as np
import pytest

from saccade.comparison.conclude.findings import ClassDifference, Disagreement
from saccade.comparison.page.report import render_report, repeat_command
from saccade.statistics import judge, paired_difference, paired_scores
from saccade.tasks import MetricSpec
from saccade.tasks.multilabel.metrics import metric_specs as label_specs
from support.comparison_page import CORRECT, REQUEST, made, numbers
from support.markup import parse


@pytest.fixture(scope="module")
def page():
    return parse(render_report(made(), request=REQUEST))


def test_missing_parts_do_not_break_the_page():
    empty = {"differences": {}, "other": {}, "classes": {}, "disagreements": {}, "costs": {}, "notes": ()}
    result = made(**empty)
    arms = tuple(replace(arm, status="failed", seeds=(), scores=(), mean=None) for arm in result.arms)
    plan = replace(result.plan, arms=tuple(replace(arm, checks=()) for arm in result.plan.arms), same_samples=False)
    page = parse(render_report(replace(result, arms=arms, plan=plan)))
    assert "No arm could be compared" in page.all("main")[0].text
    assert {row[1] for row in page.rows("accuracy on 400")} == {"failed"}


def test_smaller_is_better_is_told_and_numbers_are_not_points():
    d = paired_scores([1.0, 1.1, 1.2], [0.8, 0.9, 1.01], larger_is_better=False)
    result = made(metric="loss", differences=judge({"better": d}))
    page = parse(render_report(result))
    words = {row[0]: row[2] for row in page.rows("loss on 400")}["better"]
    assert words.startswith(f"Its loss is {-d.mean:.4g} lower.")
    assert "Left of it is better" in page.all("main")[0].text
    assert page.rows("Difference in loss from base")[0][3] == f"{d.detectable:.4g}"


def test_intervals_of_accuracy_end_at_a_hundred_points():
    first = np.array([[0, 0, 0, 0], [1, 1, 1, 1]], float)
    d = paired_difference(first, first[::-1])
    assert d.high > 1
    page = parse(render_report(made(differences=judge({"better": d}))))
    assert numbers(page.rows("Difference in accuracy")[0][2]) == [0, -100, 100]
    assert page.rows("Difference in accuracy")[0][3] == "nothing"
    assert "For better there is none: with so few seeds or samples" in page.all("main")[0].text
    assert "from 100 fewer to 100 more" in page.rows("accuracy on 400")[0][2]


def test_markdown_of_accuracy_ends_at_a_hundred_points_too():
    first = np.array([[0, 0, 0, 0], [1, 1, 1, 1]], float)
    d = paired_difference(first, first[::-1])
    assert d.low < -1
    assert d.detectable > 1
    row = ClassDifference("cat", 4, 0.5, 0.5, d, 1.0)
    result = made(differences=judge({"better": d}), classes={"better": (row,)}, other={"val_top5": {"better": d}})
    text = result.to_markdown()
    assert "| `better` | +0.00 [-100.00, +100.00] | nothing |" in text
    assert "For better there is none: with so few seeds or samples" in text
    assert "| +0.0 [-100.0, +100.0] |" in text  # the class
    assert "| +0 | -1 to +1 |" in text  # the share
    assert "there is none" not in made().to_markdown()


LABELS = {one.name: one for one in label_specs(0.3)}


def test_shares_that_are_no_right_answers_are_told_in_points_of_their_metric():
    rng = np.random.default_rng(1)
    d = paired_difference(rng.random((3, 400)), rng.random((3, 400)) * 0.9 + 0.3, share=True)
    samples = (Disagreement(0, "test[0]", "red, blue", 0.7, 0.5), Disagreement(1, "test[1]", "no label", 0.2, 0.4))
    told = {"metric": "map", "primary": "map", "metrics": LABELS, "binary": (), "sample_metric": "loss"}
    result = made(**told, differences=judge({"better": d}), classes={}, disagreements={"better": samples})
    page = parse(render_report(result))
    words = {row[0]: row[2] for row in page.rows("mean average precision on 400")}["better"]
    assert words.startswith(f"Its mean average precision is {100 * d.mean:.2f} points higher. ")
    assert f"between {100 * d.low:+.2f} points and {100 * d.high:+.2f} points" in words
    text = page.all("main")[0].text
    assert "better is better than base" in text
    assert "better is worse than base" in text
    assert "base: 0.7" in text
    assert "right in" not in text
    assert "One point is one part in a hundred" in text
    assert "Mean average precision at equal time" in text
    assert "--metric" not in repeat_command(result, REQUEST)
    markdown = result.to_markdown()
    assert "| Sample | Right answer | base | better |" in markdown
    assert "| test[0] | red, blue | 0.7 | 0.5 |" in markdown
    assert "the loss of each, averaged over the runs." in markdown


def test_numbers_with_a_unit_are_told_in_it():
    spec = MetricSpec("mae", "mean absolute error", larger_is_better=False, unit="years")
    rng = np.random.default_rng(2)
    d = paired_difference(rng.random((3, 400)) + 2, rng.random((3, 400)), larger_is_better=False, unit="years")
    row = ClassDifference("old", 20, 2.5, 0.5, d, 0.001)
    told = {"metric": "mae", "primary": "mae", "metrics": {"mae": spec}, "binary": (), "class_metric": "mae"}
    result = made(**told, differences=judge({"better": d}), classes={"better": (row,)}, disagreements={}, other={})
    page = parse(render_report(result))
    words = {row[0]: row[2] for row in page.rows("mean absolute error on 400")}["better"]
    assert words.startswith(f"Its mean absolute error is {-d.mean:.4g} years lower. ")
    assert page.rows("Difference in mean absolute error from base in years")[0][3] == f"{d.detectable:.4g} years"
    assert page.rows("better against base, years of mean absolute error")[0][3] == "2.5 → 0.5 of 20; clear"
    assert "Points: " not in page.all("main")[0].text
    assert "100 points" not in page.all("main")[0].text
    assert f"| old | {d.mean:.4g} [{d.low:.4g}, {d.high:.4g}] | 2.5 → 0.5 of 20; clear |" in result.to_markdown()


def test_an_unstable_arm_is_called_so_and_told_how_often_it_failed():
    from saccade.statistics import Stability, weigh

    judged = judge({"better": paired_difference(CORRECT["base"], CORRECT["better"])})["better"]
    went, base = Stability.count(3, 2), Stability.count(3, 0)
    arms = [replace(arm, stability=went if arm.name == "better" else base) for arm in made().arms]
    result = made(differences={"better": weigh(judged, went, base, worth=(0.7, 0.5))}, arms=tuple(arms))
    page = parse(render_report(result))
    row = {row[0]: row[1:] for row in page.rows("accuracy on 400")}["better"]
    assert row[0] == "unstable"
    assert row[1].endswith("But not all runs succeeded: Of better's 5 runs, 2 failed, so 12% to 77% of runs may fail.")
    assert "better and twin are unstable" in page.all("main")[0].text
    assert "Unstable: Runs failed or did not learn." in page.all("main")[0].text
    assert "**better**: unstable: " in result.to_markdown()
