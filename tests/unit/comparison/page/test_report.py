import json
import re
import shlex
from dataclasses import replace
from importlib import resources
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from saccade.comparison import compare as comparing
from saccade.comparison.conclude.findings import ArmResult, ClassDifference, Cost, Disagreement
from saccade.comparison.page.report import render_report, repeat_command, write_report
from saccade.comparison.page.result import Comparison
from saccade.comparison.plan.plan import Note, Plan, PlannedArm
from saccade.comparison.plan.snapshot import Check
from saccade.data.source import ArraySource
from saccade.settings import parse_settings
from saccade.settings.decisions import Decision
from saccade.statistics import judge, paired_difference, paired_scores, ratio_interval
from saccade.tasks import MetricSpec
from saccade.tasks.classification.metrics import metric_specs
from saccade.tasks.multilabel.metrics import metric_specs as label_specs
from support.comparisons import write_run
from support.markup import parse

EVIL = "<script>alert(1)</script>"
SEEDS = (0, 1, 2)
RANDOM = np.random.default_rng(0)
SHARES = {"base": 0.6, "better": 0.75, EVIL: 0.6}
CORRECT = {name: (RANDOM.random((3, 400)) < share).astype(float) for name, share in SHARES.items()}
REQUEST = {
    "data": "my images",
    "recipe": None,
    "settings": {"schedule.epochs": 2, "model.options": {"dims": [8, 16]}, "optim.name": "adamw", "keep.ema": None},
    "arms": {"base": "base", "better": "lr=0.003"},
    "seeds": [0, 1, 2],
    "budget": None,
}


RATE = Decision("optim.lr", 0.002, 0.001, "family", "family", f"a model {EVIL}")


def made(path=Path("nowhere"), **more):
    """A comparison of four arms, one of which failed."""
    base = CORRECT["base"]
    found = {name: paired_difference(base, CORRECT[name]) for name in ("better", EVIL)}
    failed = {-1: f"cannot be built: {EVIL}. Try another"}
    arms = [ArmResult(n, n, "finished", SEEDS, tuple(c.mean(1)), float(c.mean()), {}, {}) for n, c in CORRECT.items()]
    arms.append(ArmResult("broken", "squeeze", "failed", (), (), None, {}, failed))
    arms.append(replace(arms[1], name="twin", identical_to="better"))
    rows = tuple(
        ClassDifference(
            f"class {i} {EVIL}", 20, float(base[:, m].mean()), float(CORRECT["better"][:, m].mean()), d, 0.5
        )
        for i in range(20)
        for m in [slice(20 * i, 20 * i + 20)]
        for d in [paired_difference(base[:, m], CORRECT["better"][:, m])]
    )
    cost = Cost(
        1234567, 5_000_000, 0.02, ratio_interval([1.0, 1.1, 1.2], [1.5, 1.6, 1.9]), 75.0, 300 * 2**20, 60.0, None
    )
    equal = paired_scores([0.5, 0.52, 0.51], [0.55, 0.58, 0.54], share=True)
    costs = {"base": replace(cost, step_ratio=None), "better": replace(cost, at_equal_time=equal)}
    costs["broken"] = Cost(None, None, None, None, None, None, None, None)
    samples = (Disagreement(0, "test[0]", "cat", 0.0, 1.0), Disagreement(1, "test[1]", EVIL, 2 / 3, 1 / 3))
    checks = (Check("batches", True, "32 samples a step"), Check("optimizer", False, "because optim.lr = 0.003"))
    own = replace(RATE, value=0.003, who="you", rule="you", why="given by you")
    planned = (
        PlannedArm("base", "base", {}, notes=("a note",), decisions=(RATE,)),
        PlannedArm("better", "lr=0.003", {"optim.lr": (0.002, 0.003)}, checks=checks, decisions=(own,)),
        PlannedArm(EVIL, EVIL, {"model.name": ("vit", EVIL)}, checks=(checks[0], replace(checks[1], equal=True))),
        PlannedArm("broken", "squeeze", {}, failed="cannot be built"),
        PlannedArm("twin", "lr=0.003", {"optim.lr": (0.002, 0.003)}, identical_to="better"),
    )
    plan = Plan(f"set {EVIL}", "base", planned, SEEDS, 400, True, 9, 0, 1, None, "", "", 0.02, "")
    result = Comparison(
        path=path,
        plan=plan,
        metric="top1",
        reference="base",
        arms=tuple(arms),
        differences=judge(found),
        other={"val_loss": {"better": paired_scores([1.0, 1.1, 1.2], [0.8, 0.9, 0.95], larger_is_better=False)}},
        classes={"better": rows, EVIL: ()},
        disagreements={"better": samples},
        costs=costs,
        notes=(Note("failure", f"broken failed: {EVIL}", arm="broken"), Note("timing", f"a remark {EVIL}", "look")),
        primary="top1",
        metrics={one.name: one for one in metric_specs(20)},
        binary=("top1", "top5", "macro_top1"),
        class_metric="top1",
        sample_metric="top1",
    )
    return replace(result, **more)


def numbers(text):
    return [float(x.replace("\N{MINUS SIGN}", "-")) for x in re.findall(r"[-\N{MINUS SIGN}]?\d+(?:\.\d+)?", text)]


@pytest.fixture(scope="module")
def page():
    return parse(render_report(made(), request=REQUEST))


def test_the_page_tells_who_decided_the_settings_and_where_arms_differ_in_that(page):
    ((arm, setting, reference, own),) = page.rows("Decisions that differ between the arms")
    assert (arm, setting, own) == ("better", "optim.lr", "0.003 (you, you: given by you)")
    assert reference.startswith("0.002 (family, family: a model")
    ((setting, value, recipe, who, why),) = page.rows("Settings of base that differ from the recipe")
    assert (setting, value, recipe, who) == ("optim.lr", "0.002", "0.001", "family")
    assert why == RATE.why


def test_verdicts_come_first_one_line_an_arm(page):
    rows = {row[0]: row[1:] for row in page.rows("accuracy on 400")}
    assert page.all("table")[0].text.startswith("accuracy on 400")
    assert [rows[name][0] for name in ("better", EVIL, "broken", "twin")] == ["helps", "cannot tell", "failed", "helps"]
    judged = made().differences["better"]
    assert numbers(rows["better"][1])[1:] == pytest.approx(
        [100 * x for x in (judged.difference.mean, judged.low, judged.high)], abs=0.006
    )
    assert rows["twin"][1].startswith("The same settings as better.")
    assert rows["broken"][1] == f"It failed: cannot be built: {EVIL}. Try another"
    assert f"{made().verdict(EVIL).more_seeds} more seed" in rows[EVIL][1]


def test_intervals_are_those_of_the_result_with_the_detectable_size(page):
    rows = {row[0]: row for row in page.rows("Difference in accuracy from base in points")}
    for name, judged in made().differences.items():
        told = numbers(rows[name][2])
        assert told == pytest.approx([100 * x for x in (judged.difference.mean, judged.low, judged.high)], abs=0.006)
        assert numbers(rows[name][3]) == pytest.approx([100 * judged.difference.detectable], abs=0.006)
    scores = {row[0]: row for row in page.rows("Scores of every arm")}
    assert scores["better"][1] == f"{CORRECT['better'].mean():.2%}"
    assert scores["better"][4] == ", ".join(f"{x:.2%}" for x in CORRECT["better"].mean(1))
    assert scores["broken"][1] == "none"


def test_classes_show_both_ends_and_fold_the_rest(page):
    found = sorted(made().classes["better"], key=lambda row: row.difference.mean)
    title = "better against base, points of accuracy"
    worst = page.rows(f"{title}: the 5 largest losses")
    best = page.rows(f"{title}: the 5 largest gains")
    rest = page.rows(f"{title}: the other 10 classes")
    assert [row[0] for row in worst + rest + best] == [row.name for row in found]
    assert numbers(worst[0][2])[0] == pytest.approx(100 * found[0].difference.mean, abs=0.006)
    inside = next(t for t in page.all("table") if t.text.startswith(f"{title}: the other 10")).inside
    assert "details" in inside


def test_costs_and_equal_time_are_those_of_the_result(page):
    cost = made().costs["better"]
    row = next(row for row in page.rows("Cost of each arm") if row[0] == "better")
    ratio = cost.step_ratio
    assert row[1:4] == ["1,234,567", "5.0 M", "20.0"]
    assert numbers(row[4]) == pytest.approx([ratio.ratio, ratio.low, ratio.high], abs=0.006)
    assert row[5:] == ["75 s", "300 MiB"]
    equal = page.rows("Difference in accuracy from base at equal time")
    d = cost.at_equal_time
    assert [row[0] for row in equal] == ["better"]
    assert numbers(equal[0][2]) == pytest.approx([100 * d.mean, 100 * d.low, 100 * d.high], abs=0.006)
    drawn = next(
        svg.attrs["aria-label"] for svg in page.all("svg") if "Gain by cost" in svg.attrs.get("aria-label", "")
    )
    assert f"better: {ratio.ratio:.4g}, {100 * made().differences['better'].difference.mean:.4g}" in drawn


def test_names_are_text_and_nothing_runs(page):
    (script,) = page.all("script")  # reads and zooms charts; it is the same on every page
    assert script.text.strip() == (resources.files("saccade.report") / "chart.js").read_text().strip()
    assert f"set {EVIL}" in page.all("h1")[0].text
    assert "a note" in page.all("main")[0].text


def test_settings_checks_and_failures_are_told(page):
    changed = page.rows("What differs between the arms")
    assert ["better", "optim.lr", "0.002", "0.003"] in changed
    assert ["broken", "cannot be run: cannot be built", "", ""] in changed
    held = page.rows("What is held equal")
    assert held == [
        ["batches", "equal", "32 samples a step"],
        ["optimizer", "equal in the other arms", ""],
        ["optimizer", "differs in better", made().plan.arm("better").check("optimizer").detail],
    ]
    assert page.rows("Runs that did not finish") == [["broken", "all", f"cannot be built: {EVIL}. Try another"]]
    notes = [item.text for item in page.all("li") if EVIL in item.text]
    assert f"a remark {EVIL}; look" in notes
    assert not any("broken failed" in note for note in notes)


def test_command_asks_the_same_again(page):
    words = shlex.split(next(pre.text for pre in page.all("pre") if pre.text.startswith("saccade compare")))
    given = {flag: [b for a, b in pairwise(words) if a == flag] for flag in words if flag[0] == "-"}
    assert words[2] == "my images"
    assert given["--arm"] == ["base", "better:=lr=0.003"]
    assert given["--seeds"] == ["3"]
    assert parse_settings(given["--set"]) == REQUEST["settings"]
    odd = repeat_command(made(metric="loss"), {**REQUEST, "seeds": [0, 1, 7], "budget": 90.0, "recipe": "tiny"})
    assert "--seeds" not in repeat_command(made(), {**REQUEST, "seeds": None, "budget": 90.0})  # chosen again
    for part in ("--seeds 0,1,7", "--budget 90s", "--recipe tiny", "--metric loss"):
        assert part in odd


def test_raw_numbers_are_in_the_page(page):
    raw = next(pre.text for pre in page.all("pre") if '"differences"' in pre.text)
    assert json.loads(raw) == json.loads(made().to_json())


def test_images_are_shown_only_if_they_are_those_that_were_answered():
    pixels = RANDOM.integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    source = ArraySource(pixels, np.array([0, 1]), classes=["cat", "dog"], prefix="test")
    page = parse(render_report(made(), source=source))
    assert [image.attrs["alt"] for image in page.all("img")] == ["test[0]: cat"]  # the other's label has changed
    items = [item.text for item in page.all("li") if "right in" in item.text]
    assert [re.findall(r"right in (\d of \d)", text) for text in items] == [["0 of 3", "3 of 3"], ["2 of 3", "1 of 3"]]
    assert not parse(render_report(made())).all("img")


def test_curves_are_means_with_the_range_of_seeds(tmp_path):
    arms = []
    for arm, shift in zip(made().arms[:2], (0.0, 0.1), strict=True):
        runs = {}
        for seed, last in zip(SEEDS, (0.3, 0.5, 0.7), strict=True):
            path = tmp_path / arm.name / f"seed-{seed}"
            runs[seed] = write_run(path, np.ones(4), curve=(0.2 + shift, last + shift))
        arms.append(replace(arm, runs=runs))
    page = parse(write_report(made(tmp_path, arms=(*arms, *made().arms[2:]))).read_text(encoding="utf-8"))
    told = next(svg.attrs["aria-label"] for svg in page.all("svg") if "by epoch" in svg.attrs.get("aria-label", ""))
    assert "base: from 20.0% at epoch 1 to 50.0% at epoch 2" in told
    assert "better: from 30.0% at epoch 1 to 60.0% at epoch 2" in told
    band = page.all("polygon", "band")[0].attrs["points"].split()
    heights = [float(point.split(",")[1]) for point in band]  # upper edge, then the lower from right to left
    line = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", page.all("path", "line")[2].attrs["d"])]
    assert heights[0] == heights[3]
    assert (heights[1] + heights[2]) / 2 == pytest.approx(line[1], abs=0.2)
    assert "the worst to the best seed" in page.all("main")[0].text


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


def test_plan_is_told_once_and_kept_in_the_file():
    result = made()
    assert "## Plan" not in result.to_markdown()
    assert str(result.plan) in result.to_markdown(plan=True)


def test_comparison_does_not_fail_for_want_of_its_report(tmp_path):
    (tmp_path / "report.html").mkdir()
    with pytest.warns(UserWarning, match="its report was not written"):
        comparing._report(made(tmp_path), None)


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
