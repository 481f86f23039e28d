"""A comparison that was written when runs kept no scores."""

import json
import math
import tarfile
from pathlib import Path

import pytest

from saccade.comparison.compare import compare
from saccade.comparison.plan import timing
from saccade.settings import families

FILE = Path(__file__).parents[2] / "golden" / "written_before.tar.gz"
PARTS = ("metric", "reference", "classes", "disagreements", "costs", "unaffected")
NEW = {"n_pictures": "n_samples", "picture_se": "sample_se", "pictures": "samples"}  # keys that have other names now


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("before")
    with tarfile.open(FILE) as archive:
        archive.extractall(root, filter="data")
    return root / "comparison"


@pytest.fixture(autouse=True)
def _recipes_as_they_were(monkeypatch):
    """Read what was written by the numbers of then: those of a family would make it another comparison."""
    monkeypatch.setattr(families, "_families", lambda _: {})


def within(before, now):
    """Whether everything that was there before is there now with the same value, but for a processor's last digit."""
    if isinstance(before, dict):
        return all(within(value, now[NEW.get(name, name)]) for name, value in before.items())
    if isinstance(before, list):
        return len(before) == len(now) and all(map(within, before, now))
    if isinstance(before, float) and isinstance(now, float):
        return math.isclose(before, now, rel_tol=1e-12)
    return before == now


def verdicts(markdown):
    """What follows for each arm, and the difference seen."""
    return [line.split(" [")[0] for line in markdown.splitlines() if line.startswith("- **")]


def test_it_is_found_again_and_comes_out_the_same(folder, monkeypatch):
    monkeypatch.setattr(timing, "time_probe", lambda *_: pytest.fail("a run that is there was to be made again"))
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
    renamed = {NEW.get(name, name): value for name, value in record.items()}
    assert json.loads((folder / "comparison.json").read_text()) == {**renamed, "looks": [[0, 1]]}
    now = json.loads((folder / "result.json").read_text())
    assert [name for name in PARTS if not within(before[name], now[name])] == []
    alone = [{name: one["difference"] for name, one in found["differences"].items()} for found in (before, now)]
    assert within(*alone)  # what is judged counts looks now
    assert {name: one["kind"] for name, one in before["verdicts"].items()} == {
        name: one["kind"] for name, one in now["verdicts"].items()
    }
    assert [arm["scores"] for arm in now["arms"]] == [arm["scores"] for arm in before["arms"]]
    assert verdicts((folder / "result.md").read_text()) == verdicts(text) != []


def test_metrics_that_its_runs_kept_no_scores_of_are_compared_by_their_answers(folder):
    record = json.loads((folder / "comparison.json").read_text())["request"]
    given = {"arms": list(record["arms"]), "seeds": 2, "settings": record["settings"], "out": folder, "device": "cpu"}
    found = compare(**given, metric="top5", quiet=True).differences["broadcast"].difference
    before = json.loads((folder / "result.json").read_text())
    assert (found.n_samples, found.mean) == (1000, pytest.approx(-0.0025))
    ece = compare(**given, metric="ece", quiet=True).differences["broadcast"].difference
    assert (ece.n_samples, ece.samples_fixed) == (1000, False)
    assert -0.1 < ece.mean < 0.1
    compare(**given, metric="top5", quiet=True)
    assert before["metric"] == "top5"
    macro = compare(**given, metric="macro_top1", quiet=True).differences["broadcast"].difference
    assert (macro.n_samples, macro.mean) == (1000, pytest.approx(0.0005))
