"""A flag that nothing reads in the mode asked for is refused, before anything is read or written."""

from unittest.mock import create_autospec

import pytest

from saccade.cli import main
from saccade.comparison.cross import cross_validate
from support.images import class_folders


@pytest.mark.parametrize(("words", "device"), [("", None), ("--device cpu", "cpu"), ("--device cuda:1", "cuda:1")])
def test_folds_run_on_the_device_that_is_given(words, device, monkeypatch):
    run = create_autospec(cross_validate)
    monkeypatch.setattr("saccade.comparison.cross.cross_validate", run)
    assert main(["evaluate", "RUN", "--folds", "5", *words.split()]) == 0
    assert run.call_args.kwargs["device"] == device


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("evaluate RUN --folds 5 --robust", "--robust"),
        ("evaluate RUN --folds 5 --limit 8", "--limit"),
        ("evaluate RUN --folds 5 --columns image=name", "--columns"),
        ("evaluate RUN --folds 5 --average", "--average"),
        ("evaluate RUN --seeds 5", "--seeds"),
        ("evaluate RUN --group patient", "--group"),
        ("evaluate RUN --epsilon 2", "--epsilon"),
        ("evaluate RUN --steps 20", "--steps"),
        ("data labels IMAGES --teacher RUN --out MAPS --columns image=name", "--columns"),
        ("data labels IMAGES --teacher RUN --out MAPS --json", "--json"),
        ("data check IMAGES --teacher RUN", "--teacher"),
        ("data check IMAGES --out REPORT", "--out"),
        ("data check IMAGES --arm base", "--arm"),
        ("data check --answers RUN --min-side 32", "--min-side"),
        ("explain RUN IMAGES --views attention --cka biased", "--cka"),
        ("explain RUN IMAGES --views cka --block 5", "--block"),
        ("explain RUN IMAGES --views slots --epochs 1,5", "--epochs"),
        ("explain RUN IMAGES --samples 8", "--samples"),
        ("compare --arm base --arm broadcast --plan --json", "--json"),
    ],
)
def test_a_flag_that_nothing_reads_is_refused(words, flag, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "IMAGES", {"a": 2, "b": 2})
    before = sorted(tmp_path.rglob("*"))
    assert main(words.split()) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert flag in told
    assert "remove" in told
    assert sorted(tmp_path.rglob("*")) == before


def test_cuts_of_folds_without_folds_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--arm", "base", "--arm", "broadcast", "--repeats", "3"]) == 2
    assert "give folds, too" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", ["--plugin drloc:weight=1,weight=2", "--task segment:crop=32,crop=64"])
def test_an_option_given_twice_is_refused(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words.split()]) == 2
    assert "twice" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
