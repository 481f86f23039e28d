"""The claims' page says what the committed scores say, at the levels that were registered."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from benchmarks.claims import table

from saccade.statistics import paired_difference

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| `(\w+)`: .*\| ([\d.]+) without, ([\d.]+) with, (\d+) seeds \| "
    r"([+-][\d.]+) \[([+-][\d.]+), ([+-][\d.]+)\] at ([\d.]+) % \|",
    re.MULTILINE,
)


def test_page_is_the_one_that_the_script_makes() -> None:
    assert table.as_table() in PAGE


def test_every_interval_follows_from_the_committed_scores() -> None:
    rows = ROW.findall(PAGE)
    assert rows
    for name, without, with_, seeds, *shown in rows:
        claim = yaml.safe_load((ROOT / f"benchmarks/claims/claims/{name}.yaml").read_text(encoding="utf-8"))
        runs = np.load(ROOT / f"benchmarks/claims/results/{name}/scores.npz")
        arms = []
        for arm in (claim["decides"]["than"], claim["decides"]["better"]):
            keys = [key for key in runs.files if re.fullmatch(rf"{arm}-\w+/seed-\d+", key)]
            keys.sort(key=lambda key: int(key.rpartition("-")[2]))
            arms.append(np.stack([np.unpackbits(runs[key])[:10_000] for key in keys[: int(seeds)]]))
        level = 1 - 0.04 / 5 if claim.get("central") else 1 - 0.01 / 31
        found = paired_difference(*arms, level=level)
        means = [f"{100 * arm.mean():.2f}" for arm in arms]
        assert means == [without, with_]
        expected = [f"{100 * number:+.2f}" for number in (found.mean, found.low, found.high)]
        assert [*expected, f"{100 * level:.4g}"] == shown


def test_scores_are_those_of_the_runs() -> None:
    for file in (ROOT / "benchmarks/claims/results").glob("*/scores.npz"):
        for key, bits in np.load(file).items():
            text = (file.parent / "runs" / key / "summary.json").read_text(encoding="utf-8")
            accuracy = float(re.search(r'"val_top1": ([\d.]+)', text)[1])  # type: ignore[index]
            assert np.unpackbits(bits)[:10_000].mean() == pytest.approx(accuracy, abs=1e-9)


def test_shares_of_alpha_are_those_of_the_registration() -> None:
    central, other = (table.level_of({"central": which}) for which in (True, False))
    assert central == pytest.approx(0.992)
    assert table.CENTRAL * (1 - central) + table.OTHERS * (1 - other) == pytest.approx(0.05)
