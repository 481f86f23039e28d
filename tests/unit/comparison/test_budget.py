"""A comparison within a time budget: what was fitted stays, late runs are shortened alike, and resume."""

import json

import pytest

from saccade.comparison.compare import compare
from saccade.comparison.plan import planning, timing
from saccade.comparison.plan.request import Request
from saccade.comparison.run.folder import is_finished
from saccade.comparison.run.worker import train_run
from saccade.runs.run import Run
from saccade.training.allowance import Allowance
from saccade.training.pace import Pace
from support.small_comparison import PACE, small, times, write_images


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(timing, "time_probe", lambda *_: PACE)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """A set on which a run is a matter of moments."""
    path = tmp_path_factory.mktemp("set") / "set.npz"
    write_images(path)
    return str(path)


def test_a_budget_that_was_fitted_stays_when_called_again(samples, tmp_path, monkeypatch):
    monkeypatch.setattr(planning.Planner, "spent", lambda _: 0.0)
    monkeypatch.setattr(planning.Planner, "until", lambda _: None)  # whatever the machine does
    budget = 2 * 3 * (1 + 2 * 0.3 + 3) + 0.1
    given = small(tmp_path / "c", arms=["base", "lr=0.01"], seeds=4, epochs=4, budget=budget)
    first = compare(samples, **given)
    assert (first.plan.seeds, first.plan.arm("base").epochs) == ((0, 1, 2, 3), 1)
    before = times(first.path)
    monkeypatch.setattr(timing, "time_probe", lambda *_: Pace(0.0, 0.001, 0.0, 3))  # now all would fit
    again = compare(samples, **given)
    assert times(first.path) == before
    assert again.plan.budget == first.plan.budget


def test_runs_that_were_shortened_on_the_way_are_told_of_and_found_again(samples, tmp_path, monkeypatch):
    later = planning.Planner.until

    def hurried(planner):  # whatever the machine does, the runs end much too late
        return later(planner) - 10_000

    budget = 2 * 2 * (1 + 4 * 0.3 + 5) + 6.0
    given = small(tmp_path / "c", arms=["base", "lr=0.01"], seeds=2, epochs=4, budget=budget)
    monkeypatch.setattr(planning.Planner, "spent", lambda _: 5.0)
    monkeypatch.setattr(planning.Planner, "until", hurried)
    first = compare(samples, **given)
    assert first.plan.arm("base").epochs == 4
    summaries = [json.loads(path.read_text()) for path in first.path.glob("runs/*/seed-*/summary.json")]
    assert [summary["epochs"] for summary in summaries] == [1] * 4
    assert all(len(arm.seeds) == 2 for arm in first.arms)
    told = [str(note) for note in first.notes if note.kind == "budget"]
    assert len(told) == 1
    assert "seeds 0, 1 for 1 epoch instead of 4, equally in every arm" in told[0]
    before = times(first.path)
    again = compare(samples, **given)
    assert times(first.path) == before
    assert [arm.scores for arm in again.arms] == [arm.scores for arm in first.arms]
    assert [str(note) for note in again.notes if note.kind == "budget"] == told


def test_a_run_that_is_late_says_so_and_can_be_resumed(samples, tmp_path):
    given = small(tmp_path / "c", arms=["base", "lr=0.01"], seeds=2, epochs=4)
    planner = planning.Planner(Request(data=samples, **given))
    with planner.crew:
        job = planner.plan(keep=True).jobs[0]
    late = train_run(job.config, job.path, allowance=Allowance(until=0.0, epoch=1.0, rest=0.0))
    assert (late.kind, late.epoch_seconds > 0) == ("late", True)
    assert len(Run(job.path).metrics()) == 2  # the first epoch may compile
    assert not is_finished(job.path)
    assert train_run(job.config, job.path).kind == "finished"
    assert len(Run(job.path).metrics()) == 4
