import json
import re
import shlex
from dataclasses import replace
from importlib import resources
from itertools import pairwise

import numpy as np
import pytest

from saccade.comparison import compare as comparing
from saccade.comparison.page.report import render_report, repeat_command, write_report
from saccade.data.source import ArraySource
from saccade.settings import parse_settings
from support.comparison_page import CORRECT, EVIL, RANDOM, RATE, REQUEST, SEEDS, made, numbers
from support.comparisons import write_run
from support.markup import parse


@pytest.fixture(scope="module")
def page():
    return parse(render_report(made(), request=REQUEST))


def test_the_page_tells_who_decided_the_settings_and_where_arms_differ_in_that(page):
    ((arm, setting, reference, own),) = page.rows("Decisions that differ between the arms")
    assert (arm, setting, own) == ("better", "optim.lr", "0.003 (given by you)")
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


def test_plan_is_told_once_and_kept_in_the_file():
    result = made()
    assert "## Plan" not in result.to_markdown()
    assert str(result.plan) in result.to_markdown(plan=True)


def test_comparison_does_not_fail_for_want_of_its_report(tmp_path):
    (tmp_path / "report.html").mkdir()
    with pytest.warns(UserWarning, match="its report was not written"):
        comparing._report(made(tmp_path), None)
