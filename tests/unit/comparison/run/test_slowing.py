"""Trainings of a comparison on a machine that becomes slower: none is cut, and arms stay matched."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from saccade.comparison.plan.arms import parse_arm
from saccade.comparison.run import schedule
from saccade.comparison.run.processes import Crew
from saccade.comparison.run.schedule import Watch, run_jobs
from saccade.comparison.run.scheduler import Job, Limits, RunScheduler, part_of
from saccade.runs.run import Run
from saccade.settings import overlay
from saccade.training.optim import rate_at, scaled_lr
from saccade.training.pace import Pace
from support.slowing import SlowingMachine
from support.trainings import png_folder, settings

ARMS = {"base": "base", "faster": "faster:=lr=0.003"}
EPOCHS, STEPS = 6, 2


def shorten(job, share):
    epochs = part_of(job.epochs, share)
    path = job.path.with_name(f"{epochs}-{job.path.name}")
    return replace(job, config=overlay(job.config, {"schedule.epochs": epochs}), path=path)


@pytest.mark.parametrize("slow_from", [3.0, 45.0])
def test_every_run_that_counts_ends_its_schedule_and_arms_of_a_seed_are_as_long(tmp_path, monkeypatch, slow_from):
    data = png_folder(tmp_path / "images", train=16 * STEPS, val=6)
    shared = settings(schedule__epochs=EPOCHS, augment__repeats=1, keep__every_steps=None)
    shared |= {"data.path": str(data), "augment.full_epochs": None}
    jobs = []
    for seed in range(2):
        for name, text in ARMS.items():
            config = overlay(parse_arm(text).configure(None, shared), {"seed": seed})
            jobs.append(Job(name, seed, config, tmp_path / name / f"seed-{seed}"))
    machine, pace = SlowingMachine(STEPS, slow_from, validation=0.5), Pace(0.0, 1.0, 0.5, STEPS)
    machine.install(monkeypatch.setattr)
    monkeypatch.setattr(schedule, "time", SimpleNamespace(monotonic=lambda: machine.time))
    until = 1.1 * len(jobs) * pace.seconds(EPOCHS)
    scheduler = RunScheduler(jobs, Limits(until, dict.fromkeys(ARMS, pace), shorten), now=lambda: machine.time)
    ended = run_jobs(jobs, Crew([]), Watch(total=len(jobs), quiet=True), scheduler)
    assert {outcome.kind for outcome in ended.values()} == {"finished"}
    assert len(ended) == len(jobs)
    assert machine.time <= 1.05 * until
    lengths = {}
    for job in [job for whole in scheduler.passes.values() for job in whole]:  # as shortened, those that count
        run = Run.open(job.path)
        config, last = run.config(), run.metrics()[-1]
        peak = scaled_lr(config.optim)
        lowest = rate_at(last["step"] - 1, steps_per_epoch=STEPS, peak=peak, schedule=config.schedule)
        assert (last["epoch"], last["lr"]) == (config.schedule.epochs, lowest)
        assert "shortened" not in run.summary()
        lengths.setdefault(config.seed, []).append(config.schedule.epochs)
    assert all(len(found) == len(ARMS) and len(set(found)) == 1 for found in lengths.values())
    assert sum(min(found) for found in lengths.values()) < 2 * EPOCHS  # it was too slow for all of them
