"""Comparisons on a machine that is simulated: its clock, its load, and runs that take their time from both."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from saccade.comparison.plan.budget import BudgetRequest, fit_budget
from saccade.comparison.plan.folds import fold_runs
from saccade.comparison.run import scheduler as under_test
from saccade.comparison.run.scheduler import Job, Limits, RunScheduler, part_of
from saccade.comparison.run.worker import Outcome
from saccade.settings import TrainConfig, overlay
from saccade.training.allowance import Allowance, DeadlineExceeded
from saccade.training.pace import Pace

Load = Callable[[float], float]  # how much slower everything is than planned, by the second
PACES = {"base": Pace(1.0, 0.01, 0.2, 50), "other": Pace(1.5, 0.015, 0.2, 50)}


class Machine:
    """Runs a comparison; `ran` holds the runs that count, by arm and seed, with their epochs."""

    def __init__(self, load: Load, paces: Mapping[str, Pace] = PACES) -> None:
        self.load, self.paces, self.time = load, paces, 0.0
        self.ran: dict[tuple[str, int], int] = {}
        self.begun = 0

    def pass_by(self, seconds: float) -> None:
        while seconds > 0:
            part = min(seconds, 0.05)
            self.time += part * self.load(self.time)
            seconds -= part

    def compare(
        self,
        jobs: Sequence[Job],
        *,
        until: float | None,
        least: int = 2,
        done: int = 0,
        fixed: frozenset[int] = frozenset(),
    ) -> RunScheduler:
        limits = Limits(until, self.paces, shorten, least=least, done=done, fixed=fixed)
        scheduler = RunScheduler(jobs, limits, now=lambda: self.time)
        while (job := scheduler.next()) is not None:
            begun, outcome = self.time, self._train(job, scheduler.allowance(job))
            scheduler.end(job, outcome, self.time - begun)
            if outcome.kind == "finished":
                self.ran[(job.arm, job.seed)] = job.epochs
        return scheduler

    def _train(self, job: Job, allowance: Allowance | None) -> Outcome:
        self.begun += 1
        pace, ends = self.paces[job.arm], list[float]()
        self.pass_by(pace.startup)
        for epoch in range(1, job.epochs + 1):
            self.pass_by((pace.seconds(job.epochs) - pace.startup) / job.epochs)
            ends.append(self.time)
            try:
                if allowance is not None and epoch < job.epochs:
                    left = job.epochs - epoch
                    allowance.check(now=self.time, second=ends[0], epochs=epoch, left=left)
            except DeadlineExceeded as late:
                return Outcome("late", str(late), late.epoch_seconds)
        return Outcome("finished")


def shorten(job: Job, share: float) -> Job:
    return replace(job, config=overlay(job.config, {"schedule.epochs": part_of(job.epochs, share)}))


def jobs_of(epochs: int, seeds: int, arms: Sequence[str] = ("base", "other")) -> list[Job]:
    config = overlay(TrainConfig(), {"schedule.epochs": epochs})
    return [Job(arm, seed, config, Path("nowhere") / arm / str(seed)) for seed in range(seeds) for arm in arms]


def planned(budget: float, *, seeds: int = 5, epochs: int = 60) -> list[Job]:
    fit = fit_budget(BudgetRequest(budget, seeds, named=False), PACES, dict.fromkeys(PACES, epochs))
    return jobs_of(max(fit.epochs.values()), fit.seeds)


LOADS: dict[str, Load] = {
    "as planned": lambda _: 1.0,
    "a little slower": lambda _: 1.08,
    "twice as slow": lambda _: 2.0,
    "five times as slow": lambda _: 5.0,
    "slower from a third on": lambda t: 1.0 if t < 30 else 1.7,
    "slower near the end": lambda t: 1.0 if t < 60 else 1.8,
    "slow at first": lambda t: 3.0 if t < 15 else 1.0,
    "by turns": lambda t: 1.0 if int(t / 7) % 2 else 1.9,
    "slower and slower": lambda t: 1 + t / 90,
    "faster": lambda _: 0.6,
}


@pytest.mark.parametrize(("load", "seeds"), [*itertools.product(LOADS, (2, 3, 5))])
def test_a_budget_is_kept_and_arms_are_trained_alike(load: str, seeds: int) -> None:
    budget = 90.0
    machine = Machine(LOADS[load])
    machine.compare(planned(budget, seeds=seeds), until=budget)
    assert machine.time <= 1.05 * budget
    whole = [seed for seed in range(seeds) if all((arm, seed) in machine.ran for arm in PACES)]
    assert len(whole) >= 2
    for seed in whole:
        assert machine.ran[("base", seed)] == machine.ran[("other", seed)]
    epochs = [machine.ran[("base", seed)] for seed in whole]
    assert min(epochs) >= 0.5 * max(epochs) or len(whole) == 2


def test_runs_are_as_planned_where_they_take_what_was_planned() -> None:
    for load in ("as planned", "faster"):
        jobs, machine = planned(90.0), Machine(LOADS[load])
        scheduler = machine.compare(jobs, until=90.0)
        assert machine.ran == {(job.arm, job.seed): job.epochs for job in jobs}
        assert machine.begun == len(jobs)
        assert [one for group in scheduler.passes.values() for one in group] == jobs


def test_a_machine_that_was_busy_while_steps_were_timed_loses_two_epochs_of_one_run() -> None:
    jobs, machine = planned(90.0, seeds=2), Machine(LOADS["twice as slow"])
    scheduler = machine.compare(jobs, until=90.0)
    assert machine.begun == len(jobs) + 1
    assert scheduler.messages == [f"runs are slower than planned: {machine.ran[('base', 0)]} epochs for seeds 0, 1"]
    assert len(set(machine.ran.values())) == 1  # all seeds are the same


def test_seeds_are_left_out_before_epochs_down_to_three() -> None:
    jobs = jobs_of(10, 5)
    whole = sum(PACES[job.arm].seconds(10) for job in jobs)
    machine = Machine(lambda _: 1.0)
    scheduler = machine.compare(jobs, until=0.7 * whole)
    assert sorted({seed for _, seed in machine.ran}) == [0, 1, 2]
    assert set(machine.ran.values()) == {10}
    assert list(scheduler.passes) == [0, 1, 2]
    assert scheduler.messages == ["runs are slower than planned: no time left for seeds 3, 4"]


def test_without_a_budget_everything_is_run_whatever_it_takes() -> None:
    machine = Machine(LOADS["five times as slow"])
    machine.compare(jobs_of(10, 5), until=None)
    assert len(machine.ran) == 10


def test_the_least_is_run_even_without_time_and_seeds_finished_before_count() -> None:
    machine = Machine(lambda _: 1.0)
    machine.compare(jobs_of(10, 3), until=1.0)
    assert machine.ran == {(arm, seed): 1 for arm in PACES for seed in (0, 1)}
    machine = Machine(lambda _: 1.0)
    machine.compare(jobs_of(10, 3), until=0.0, done=2)
    assert not machine.ran


def test_a_seed_of_which_a_run_was_finished_before_keeps_its_epochs() -> None:
    jobs = jobs_of(20, 3)[1:]  # the first run of seed 0 was finished before
    whole = sum(PACES[job.arm].seconds(20) for job in jobs)
    machine = Machine(LOADS["twice as slow"])
    machine.compare(jobs, until=whole, fixed=frozenset({0}))
    assert machine.ran[("other", 0)] == 20
    assert machine.ran[("base", 1)] == machine.ran[("other", 1)] < 20
    assert machine.time <= 1.05 * whole


def test_folds_of_a_pass_stand_or_fall_together() -> None:
    config = overlay(TrainConfig(), {"schedule.epochs": 10})
    parts = [piece for seed in range(2) for piece in fold_runs(seed, 3)]
    jobs = [Job(arm, part.seed, config, Path("nowhere"), part) for part in parts for arm in PACES]
    machine = Machine(LOADS["twice as slow"])
    machine.compare(jobs, until=1.05 * sum(PACES[job.arm].seconds(10) for job in jobs[:6]), least=1)
    assert machine.ran.keys() == {(job.arm, job.seed) for job in jobs[:6]}
    assert len(set(machine.ran.values())) == 1


def test_an_arm_that_could_not_be_timed_counts_as_the_slowest() -> None:
    machine = Machine(lambda _: 1.0)
    scheduler = RunScheduler(
        jobs_of(10, 3, ("base", "untimed")), Limits(60.0, {"base": PACES["base"]}, shorten), now=lambda: 0.0
    )
    assert scheduler.next() == jobs_of(10, 1, ("base",))[0]
    assert scheduler.allowance(jobs_of(10, 1, ("untimed",))[0]) is not None
    assert machine.begun == 0


def test_side_by_side_seeds_that_do_not_fit_are_not_begun() -> None:
    jobs = jobs_of(10, 6)
    one = PACES["base"].seconds(10) + PACES["other"].seconds(10)
    scheduler = RunScheduler(jobs, Limits(2.4 * one, PACES, shorten), 2, now=lambda: 0.0)
    given = [scheduler.next() for _ in range(9)]
    assert len([job for job in given if job is not None]) == 8
    assert scheduler.allowance(jobs[0]) is None


@pytest.mark.parametrize("rest", [0.0, 15.0])
def test_a_run_is_late_when_it_and_what_follows_will_surely_not_end_in_time(rest: float) -> None:
    allowance = Allowance(until=100.0, epoch=1.0, rest=rest)
    allowance.check(now=50.0, second=1.0, epochs=1, left=1000)  # the first epoch compiles
    # Twice as slow as planned, by 25 epochs: a tenth more than 60 s may be chance.
    allowance.check(now=40.0, second=-10.0, epochs=26, left=int(32 - rest))
    with pytest.raises(DeadlineExceeded) as late:
        allowance.check(now=40.0, second=-10.0, epochs=26, left=int(34 - rest))
    assert late.value.epoch_seconds == 2.0
    allowance.check(now=40.0, second=38.0, epochs=2, left=int(34 - rest))  # one epoch does not say much


def test_the_first_epochs_compiling_is_not_taken_for_a_slow_machine(tmp_path: Path) -> None:
    assert under_test._without_first(10.0, tmp_path) == 10.0
    (tmp_path / "metrics.jsonl").write_text(
        "".join(f'{{"epoch": {n}, "seconds": {50 if n == 1 else 2}}}\n' for n in (1, 2, 3))
    )
    assert under_test._without_first(60.0, tmp_path) == 12.0
