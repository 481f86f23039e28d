import json

import pytest

from saccade.deployment.browse import RunIndex


@pytest.fixture
def folder(tmp_path):
    run = tmp_path / "all" / "deep" / "run-1"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("")
    (run / "summary.json").write_text(json.dumps({"val_top1": 0.5, "epochs": 3, "data": "pictures", "other": 1}))
    (run / "report.html").write_text("the report")
    comparison = tmp_path / "all" / "compared"
    comparison.mkdir()
    (comparison / "comparison.json").write_text(json.dumps({"request": {"arms": {"base": "", "broadcast": ""}}}))
    hidden = tmp_path / "all" / ".hidden"
    hidden.mkdir()
    (hidden / "config.yaml").write_text("")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.yaml").write_text("")
    (tmp_path / "outside" / "report.html").write_text("secret")
    (tmp_path / "all" / "link").symlink_to(tmp_path / "outside")
    return tmp_path / "all"


def test_runs_and_comparisons_are_found_with_what_they_are(folder):
    comparison, run = RunIndex([folder]).items()
    assert (comparison.kind, comparison.name, comparison.finished, comparison.has_report) == (
        "comparison",
        "compared",
        False,
        False,
    )
    assert comparison.facts == {"arms": ["base", "broadcast"]}
    assert (run.kind, run.name, run.finished, run.has_report) == ("run", "deep/run-1", True, True)
    score = {"name": "top1", "words": "accuracy", "share": True, "larger": True, "value": 0.5, "text": "50.00%"}
    assert run.facts == {"val_top1": 0.5, "epochs": 3, "data": "pictures", "score": score}


def test_a_report_is_found_by_its_id_and_by_nothing_else(folder):
    index = RunIndex([folder])
    assert index.report("anything") is None
    comparison, run = index.items()
    assert index.report(run.id) == b"the report"
    assert index.report(comparison.id) is None
    for path in ("../outside", str(folder / "deep" / "run-1"), "deep/run-1", ""):
        assert index.report(path) is None


def test_a_run_that_is_served_and_in_a_folder_is_listed_once(folder):
    assert len(RunIndex([folder, folder], [folder / "deep" / "run-1"]).items()) == 2


def test_a_damaged_record_hides_nothing_else(folder):
    (folder / "deep" / "run-1" / "summary.json").write_text("{torn")
    (folder / "compared" / "comparison.json").write_text("[]")
    comparison, run = RunIndex([folder]).items()
    assert not run.finished
    assert comparison.facts == {"arms": []}


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(NotADirectoryError, match="not a directory"):
        RunIndex([tmp_path / "nowhere"])
