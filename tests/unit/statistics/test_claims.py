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
    r"^\| \[(\w+)\]\([^)]*\): .*\| ([\d.]+) (\w+), ([\d.]+) (\w+), (\d+) seeds(?: \(([a-z ]+)\))? \| "
    r"([+-][\d.]+) \[([+-][\d.]+), ([+-][\d.]+)\] at ([\d.]+) % \| [^|]*\| ([a-z ]+?)(?:, with warnings)? \|",
    re.MULTILINE,
)


def test_page_is_the_one_that_the_script_makes() -> None:
    assert table.as_table() in PAGE


def test_figure_is_the_one_that_the_script_makes() -> None:
    assert table.FIGURE.read_text(encoding="utf-8") == table.as_page()


def test_every_interval_follows_from_the_committed_scores() -> None:
    rows = ROW.findall(PAGE)
    assert rows
    for name, worse, than, higher, better, seeds, layers, *shown, verdict in rows:
        claim = yaml.safe_load((ROOT / f"benchmarks/claims/claims/{name}.yaml").read_text(encoding="utf-8"))
        runs = np.load(ROOT / f"benchmarks/claims/results/{name}/scores.npz")
        arms = []
        for arm in (than, better):
            keys = [key for key in runs.files if re.fullmatch(rf"{arm}-\w+/seed-\d+", key)]
            keys.sort(key=lambda key: int(key.rpartition("-")[2]))
            kept = [runs[key] for key in keys[: int(seeds)]]
            if layers == "all layers":
                kept = [1 - run.astype(float).mean(0) for run in kept]
            elif layers:  # of nine
                kept = [run[:4].astype(float).mean(0) - run[5:].astype(float).mean(0) for run in kept]
            else:
                kept = [np.unpackbits(run)[:10_000] for run in kept]
            arms.append(np.stack(kept))
        level = 1 - 0.04 / 5 if claim.get("central") else 1 - 0.01 / 31
        found = paired_difference(*arms, level=level)
        assert [f"{100 * arm.mean():.2f}" for arm in arms] == [worse, higher]
        expected = [f"{100 * number:+.2f}" for number in (found.mean, found.low, found.high)]
        assert [*expected, f"{100 * level:.4g}"] == shown
        if found.low > 0 and "margin" not in claim["decides"]:
            assert verdict == "holds"
        if found.low < 0 < found.high and "margin" not in claim["decides"]:
            assert verdict == "cannot tell"


def test_a_claim_holds_only_if_all_of_its_comparisons_do() -> None:
    rng = np.random.default_rng(0)
    base = rng.random((8, 2000)) < 0.6
    changed = rng.random(base.shape) < 0.2
    arms = {"gain": base | changed, "loss": base & ~changed, "none": base ^ (rng.random(base.shape) < 1e-4)}
    found = {name: paired_difference(base, arm) for name, arm in arms.items()}

    def verdict(*compared: tuple[str, float | None]) -> str:
        each = [table.Compared("a", "b", margin, (0.0, 0.0), found[name]) for name, margin in compared]
        return table.Found(tuple(range(8)), 8, tuple(each)).verdict

    assert verdict(("gain", None)) == "holds"
    assert verdict(("gain", None), ("none", None)) == "cannot tell"
    assert verdict(("gain", None), ("none", None), ("loss", None)) == "does not hold"
    assert verdict(("none", 0.05)) == "holds"
    assert verdict(("gain", 0.05)) == verdict(("loss", 0.05)) == "does not hold"
    assert table.Found((), 10).verdict == "not run"


def test_every_claim_says_what_it_needs() -> None:
    claims = table.read_claims()
    assert len(claims) == table.CENTRAL + table.OTHERS
    assert sum(bool(claim.get("central")) for claim in claims.values()) == table.CENTRAL
    for claim in claims.values():
        assert {"paper", "claim", "figure"} <= claim.keys()
        asked = claim.get("compare")
        if asked is None:
            assert "how" in claim or {"runs", "score", "decides"} <= claim.keys()
            continue
        assert (ROOT / f"benchmarks/claims/hosts/{asked['host']}.yaml").exists()
        names = {arm.partition(":=")[0] for arm in asked["arms"]}
        decides = claim["decides"] if isinstance(claim["decides"], list) else [claim["decides"]]
        assert {one[which] for one in decides for which in ("better", "than")} <= names


def test_scores_are_those_of_the_runs() -> None:
    for file in (ROOT / "benchmarks/claims/results").glob("*/scores.npz"):
        claim = yaml.safe_load((ROOT / f"benchmarks/claims/claims/{file.parent.name}.yaml").read_text(encoding="utf-8"))
        if "runs" in claim:  # measured on another claim's models, of which these are
            assert set(np.load(file)) <= set(np.load(file.parent.parent / claim["runs"] / "scores.npz"))
            continue
        for key, bits in np.load(file).items():
            text = (file.parent / "runs" / key / "summary.json").read_text(encoding="utf-8")
            accuracy = float(re.search(r'"val_top1": ([\d.]+)', text)[1])  # type: ignore[index]
            assert np.unpackbits(bits)[:10_000].mean() == pytest.approx(accuracy, abs=1e-9)


def test_shares_of_alpha_are_those_of_the_registration() -> None:
    central, other = (table.level_of({"central": which}) for which in (True, False))
    assert central == pytest.approx(0.992)
    assert table.CENTRAL * (1 - central) + table.OTHERS * (1 - other) == pytest.approx(0.05)
