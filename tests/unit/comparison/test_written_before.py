"""A comparison that was written when runs kept no scores."""

import json
import tarfile
from pathlib import Path

import pytest

from saccade.comparison import planning
from saccade.comparison.compare import compare

FILE = Path(__file__).parents[2] / "golden" / "written_before.tar.gz"
PARTS = ("metric", "reference", "differences", "other", "classes", "disagreements", "costs", "verdicts", "unaffected")
NEW = {"n_pictures": "n_samples", "picture_se": "sample_se", "pictures": "samples"}  # keys that have other names now


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("before")
    with tarfile.open(FILE) as archive:
        archive.extractall(root, filter="data")
    return root / "comparison"


def within(before, now):
    """Whether everything that was there before is there now with the same value."""
    if isinstance(before, dict):
        return all(within(value, now[NEW.get(name, name)]) for name, value in before.items())
    if isinstance(before, list):
        return len(before) == len(now) and all(map(within, before, now))
    return before == now


def verdicts(markdown):
    """The lines that say what follows for each arm."""
    return [line for line in markdown.splitlines() if line.startswith("- **")]


def test_it_is_found_again_and_comes_out_the_same(folder, monkeypatch):
    monkeypatch.setattr(planning, "time_probe", lambda *_: pytest.fail("a run that is there was to be made again"))
    record = json.loads((folder / "comparison.json").read_text())
    before = json.loads((folder / "result.json").read_text())
    text = (folder / "result.md").read_text()
    settings = dict(record["request"]["settings"])
    result = compare(
        arms=list(record["request"]["arms"]),
        seeds=2,
        model=settings.pop("model.name"),
        epochs=settings.pop("schedule.epochs"),
        settings=settings,
        out=folder,
        device="cpu",
        quiet=True,
    )
    assert result.plan.finished == 4
    assert json.loads((folder / "comparison.json").read_text()) == record
    now = json.loads((folder / "result.json").read_text())
    assert [name for name in PARTS if not within(before[name], now[name])] == []
    assert [arm["scores"] for arm in now["arms"]] == [arm["scores"] for arm in before["arms"]]
    assert verdicts((folder / "result.md").read_text()) == verdicts(text) != []


def test_a_metric_that_its_runs_kept_no_scores_of_is_compared_over_seeds(folder):
    record = json.loads((folder / "comparison.json").read_text())["request"]
    given = {"arms": list(record["arms"]), "seeds": 2, "settings": record["settings"], "out": folder, "device": "cpu"}
    found = compare(**given, metric="top5", quiet=True).differences["broadcast"].difference
    before = json.loads((folder / "result.json").read_text())
    assert (found.n_samples, found.mean) == (0, pytest.approx(-0.0025))
    assert before["metric"] == "top5"
    macro = compare(**given, metric="macro_top1", quiet=True).differences["broadcast"].difference
    assert (macro.n_samples, macro.mean) == (1000, pytest.approx(0.0005))
