import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from saccade.comparison.plan import snapshot
from saccade.comparison.plan.arms import parse_arm
from saccade.comparison.plan.snapshot import DataCache
from saccade.comparison.run import processes, schedule
from saccade.comparison.run.folder import is_finished
from saccade.comparison.run.processes import Crew, Slot, make_slots, time_probe
from saccade.comparison.run.schedule import Watch, run_jobs
from saccade.comparison.run.scheduler import Job
from saccade.comparison.run.worker import Outcome
from saccade.runs.run import Run, hold
from saccade.settings import overlay
from saccade.tasks import MetricSpec
from saccade.training.loop import Interrupted
from support.comparisons import SETTINGS, write_run


def job(tmp_path, text="base", seed=0, **settings):
    shared = {**SETTINGS, "schedule.epochs": 1, "engine.device": "cpu", **settings}
    config = overlay(parse_arm(text).configure(None, shared), {"seed": seed})
    return Job(text, seed, config, tmp_path / text / f"seed-{seed}")


def test_a_cpu_runs_in_this_process_unless_asked_and_splits_its_cores():
    assert make_slots(None, "auto", gpus=[], cores=8) == []
    slots = make_slots(3, "cpu", gpus=[], cores=8)
    assert [slot.threads for slot in slots] == [2, 2, 2]
    assert make_slots(4, "cpu", gpus=["0"], cores=2)[0].threads == 1


def test_gpus_get_a_process_each_and_several_if_asked():
    def devices(*args, **options):
        return [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in make_slots(*args, cores=8, **options)]

    assert devices(None, "auto", gpus=["0", "1"]) == ["0", "1"]
    assert devices(5, "cuda", gpus=["4", "7"]) == ["4", "7", "4", "7", "4"]
    assert devices(2, "cuda:1", gpus=["4", "7"]) == ["7", "7"]
    with pytest.raises(ValueError, match="no such GPU; there are 2"):
        devices(1, "cuda:2", gpus=["4", "7"])
    with pytest.raises(ValueError, match="1 or more"):
        make_slots(0, "cpu", gpus=[], cores=2)


def test_a_failing_run_does_not_stop_the_others(tmp_path, monkeypatch):
    def train_run(config, path, cache=None, **_):
        if config.seed == 1:
            return Outcome("refused", "no")
        write_run(path, [True, False])
        return Outcome("finished")

    monkeypatch.setattr(schedule, "train_run", train_run)
    jobs = [job(tmp_path, seed=seed) for seed in range(3)]
    found = run_jobs(jobs, Crew([]), Watch(total=3, quiet=True))
    assert [found[("base", seed)].kind for seed in range(3)] == ["finished", "refused", "finished"]


def test_the_display_counts_epochs_of_running_runs(tmp_path):
    watch = Watch(total=4, seconds=100.0, quiet=True)
    first, second = job(tmp_path, seed=0), job(tmp_path, seed=1)
    watch.begin(first, first.path, 4)
    assert watch.standing(10.0)["left"] == "about 90 s left"
    write_run(first.path, [True], seconds=(1.0, 1.0))
    standing = watch.standing(10.0)
    assert standing["completed"] == 0.5
    assert standing["left"] == "about 70 s left"
    watch.end(first, Outcome("finished"))
    watch.begin(second, second.path, 4)
    assert watch.standing(10.0)["state"] == "1/4 runs, running: base, seed 1"


def test_a_finished_run_is_told_with_its_score_in_the_words_of_its_metric(tmp_path, capsys):
    for number, (metric, told) in enumerate(
        [
            (MetricSpec("top1", "accuracy", share=True), "base, seed 0: accuracy 75.00%, "),
            (MetricSpec("mae", "mean absolute error", unit="years"), "base, seed 0: mean absolute error 1.5 years, "),
            (None, "base, seed 0: 0.0 s"),
        ]
    ):
        one = job(tmp_path / str(number))
        write_run(one.path, [True, True, True, False], val_mae=1.5)
        watch = Watch(total=1, metric=metric)
        watch.begin(one, one.path, 1)
        watch.end(one, Outcome("finished"))
        assert f"1/1 {told}" in capsys.readouterr().err


@pytest.mark.slow
def test_workers_finish_side_by_side_and_are_timed(tmp_path):
    crew = Crew(make_slots(2, "cpu", gpus=[], cores=2))
    pace = time_probe(job(tmp_path).config, crew, tmp_path)
    assert (pace.steps, pace.step > 0, pace.startup > 0) == (3, True, True)
    jobs = [job(tmp_path, text, seed) for seed in (0, 1) for text in ("base", "lr=1e30,optim.clip=null")]
    with crew:
        found = run_jobs(jobs, crew, Watch(total=4, quiet=True))
    assert {key[0]: outcome.kind for key, outcome in found.items()} == {
        "base": "finished",
        "lr=1e30,optim.clip=null": "refused",
    }
    assert "not a finite number" in found[("lr=1e30,optim.clip=null", 0)].reason
    assert all(is_finished(one.path) for one in jobs if one.arm == "base")


@pytest.mark.slow
def test_a_process_stays_for_the_next_run_which_comes_out_as_in_one_of_its_own(tmp_path, monkeypatch):
    begun: list[subprocess.Popen[bytes]] = []
    original = processes.start

    def spawn(*args):
        begun.append(original(*args))
        return begun[-1]

    monkeypatch.setattr(processes, "start", spawn)
    slots = make_slots(1, "cpu", gpus=[], cores=1)
    for folder, together in (("one", True), ("each", False)):
        jobs = [job(tmp_path / folder, seed=seed) for seed in (0, 1)]
        for part in [jobs] if together else [[one] for one in jobs]:
            with Crew(slots) as crew:
                assert {one.kind for one in run_jobs(part, crew, Watch(total=2, quiet=True)).values()} == {"finished"}
    assert len(begun) == 3
    assert all(one.poll() is not None for one in begun)
    for seed in (0, 1):
        first, second = (
            load_file(tmp_path / name / "base" / f"seed-{seed}" / "model.safetensors") for name in ("one", "each")
        )
        assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.slow
def test_a_killed_worker_is_gone_on_with_once(tmp_path, monkeypatch):
    begun: list[subprocess.Popen[bytes]] = []
    original = processes.start

    def spawn(*args):
        begun.append(original(*args))
        return begun[-1]

    one = job(tmp_path, **{"schedule.epochs": 30})
    said = []

    class Killer(Watch):
        def begin(self, *args):
            super().begin(*args)
            if len(begun) == 1:
                until = time.monotonic() + 120
                while not Run(one.path).metrics() and time.monotonic() < until:
                    time.sleep(0.05)
                os.kill(begun[0].pid, signal.SIGKILL)

        def say(self, text, **options):
            said.append(text)

    monkeypatch.setattr(processes, "start", spawn)
    with Crew([Slot({"OMP_NUM_THREADS": "1"}, 1)]) as crew:
        found = run_jobs([one], crew, Killer(total=1, quiet=True))
    assert found[("base", 0)].kind == "finished"
    assert len(begun) == 2
    assert "killed by signal 9" in said[0]
    assert len(Run(one.path).metrics()) == 30
    assert not (one.path / "cost.json").exists()  # its whole time is not known


@pytest.mark.slow
def test_ctrl_c_stops_all_workers_with_their_states_saved(tmp_path):
    jobs = [job(tmp_path, seed=seed, **{"schedule.epochs": 500}) for seed in (0, 1)]

    class Stopper(Watch):
        def begin(self, *args):
            super().begin(*args)
            if len(self.running) == 2:
                until = time.monotonic() + 120
                while not all(Run(one.path).metrics() for one in jobs) and time.monotonic() < until:
                    time.sleep(0.05)
                raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run_jobs(jobs, Crew(make_slots(2, "cpu", gpus=[], cores=2)), Stopper(total=2, quiet=True))
    for one in jobs:
        assert not is_finished(one.path)
        records = len(Run(one.path).metrics())
        time.sleep(0.5)
        assert len(Run(one.path).metrics()) == records  # nobody works on it any more
        assert list((one.path / "state").iterdir())


@pytest.mark.slow
def test_workers_stop_by_themselves_when_the_comparison_is_killed(tmp_path):
    given = {"arms": ["base", "lr=0.01"], "seeds": 2, "epochs": 500, "out": str(tmp_path), "device": "cpu"}
    given |= {"parallel": 2, "settings": SETTINGS, "quiet": True}
    code = "import json, sys; from saccade.comparison.compare import compare; compare(**json.loads(sys.argv[1]))"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    parent = subprocess.Popen([sys.executable, "-c", code, json.dumps(given)], env=environment)
    until = time.monotonic() + 200
    runs: list[Path] = []
    while time.monotonic() < until and not (len(runs) == 2 and all(Run(run).metrics() for run in runs)):
        time.sleep(0.1)
        runs = list(tmp_path.glob("runs/*/seed-0"))
    parent.kill()
    parent.wait()
    assert len(runs) == 2
    for run in runs:
        with hold(run.with_name(".seed-0.lock"), wait=60):  # its worker holds it as long as it works
            assert list((run / "state").glob("step-*"))
            assert not is_finished(run)


def test_runs_in_this_process_open_their_samples_once(tmp_path, monkeypatch):
    opened = []
    original = snapshot.open_samples
    monkeypatch.setattr(snapshot, "open_samples", lambda *args: opened.append(args) or original(*args))
    jobs = [job(tmp_path, seed=seed) for seed in (0, 1)]
    found = run_jobs(jobs, Crew([]), Watch(total=2, quiet=True), cache=DataCache())
    assert [outcome.kind for outcome in found.values()] == ["finished"] * 2
    assert len(opened) == 1
