"""A schedule that is shortened on the way ends in time and at its lowest rate, on simulated machines."""

import itertools
import random
from dataclasses import dataclass, field

import pytest

from saccade.settings import ScheduleConfig
from saccade.training.length import RunLength
from saccade.training.optim import rate_at, warmup_of
from saccade.training.time_limit import TimeLimit, whole_epochs

CURVES = {
    "cosine": ScheduleConfig(),
    "linear": ScheduleConfig(curve="poly", min_lr=0.0),
    "steps": ScheduleConfig(curve="steps", warmup_steps=7),
}


@dataclass
class Simulated:
    """A run of steps that only take time."""

    epochs: int
    steps: int
    factor: float
    slow_from: float  # share of the time
    validation: float
    every: int
    noise: float
    looks: int  # steps between looks at the clock
    seed: int
    time: float = 0.0
    decisions: int = 0
    places: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.length = RunLength.of(self.epochs, self.steps)
        times = self.epochs // self.every + (self.epochs % self.every > 0)
        self.planned = self.length.planned + times * self.validation
        self.until = 1.15 * self.planned  # as runs are fitted

    def pass_by(self, seconds: float) -> None:
        fast = min(max(self.slow_from * self.until - self.time, 0.0), seconds)
        self.time += fast + (seconds - fast) * self.factor

    def run(self, warmup: int = 0) -> "Simulated":
        draws, limit = random.Random(self.seed), TimeLimit(self.until, 0.0, 0.3 * self.validation)
        step = epoch = 0

        def validations(end: int) -> int:
            last = -(-end // self.steps)
            return last // self.every - epoch // self.every + (last % self.every > 0)

        while epoch < self.length.epochs:
            while step < self.length.end_of(epoch):
                self.places.append(self.length.place(step))
                self.pass_by(draws.uniform(1 - self.noise, 1 + self.noise))
                step += 1
                if step % self.looks and step < self.length.end_of(epoch):
                    continue
                total = self.length.total
                left = limit.steps_left(now=self.time, step=step, total=total, validations=validations)
                if left is not None:
                    left = whole_epochs(step, left, self.steps)
                    self.length = self.length.shortened(step, left, warmup=warmup)
                    self.decisions += 1
            epoch += 1
            if epoch % self.every == 0 or epoch == self.length.epochs:
                begun = self.time
                self.pass_by(self.validation)
                limit.validated(self.time - begun, now=self.time, step=step)
        return self


def drawn(seed: int) -> Simulated:
    draws = random.Random(seed)
    steps = draws.randint(3, 50)
    return Simulated(
        epochs=draws.randint(2, 40),
        steps=steps,
        factor=draws.uniform(1.2, 5),
        slow_from=draws.random(),
        validation=draws.choice([0.1, 1.0, 3.0, 0.3 * steps]),
        every=draws.choice([1, 1, 3]),
        noise=draws.choice([0.0, 0.1, 0.3]),
        looks=draws.choice([1, 1, 10]),
        seed=seed,
    )


def test_a_machine_that_becomes_slower_at_any_moment_keeps_the_time_to_a_step_and_a_validation() -> None:
    over = []
    for seed in range(600):
        run = drawn(seed).run()
        slack = run.factor * (1 + run.noise) * (min(run.looks, run.steps) + run.validation)
        assert run.time <= run.until + slack, run
        assert run.decisions <= 4, run
        assert run.places == sorted(run.places), run
        assert run.places[-1] == run.length.planned - 1, run
        assert len(run.places) == run.length.total
        over.append(run.time / run.until)
    assert sum(share > 1.02 for share in over) < 0.05 * len(over)  # those of a handful of steps


def test_a_run_that_is_shortened_uses_the_time_it_has() -> None:
    used = [run.time / run.until for run in (drawn(seed).run() for seed in range(300)) if run.decisions]
    assert len(used) > 200
    assert sum(used) / len(used) > 0.92


def test_a_machine_as_fast_as_planned_or_faster_is_left_alone_and_so_are_pauses_there_is_time_for() -> None:
    for seed in range(200):
        run = drawn(seed)
        run.factor = random.Random(seed).choice([0.5, 1.0])
        run.run()
        assert (run.decisions, run.length.total) == (0, run.length.planned)
    limit = TimeLimit(115.0, 0.0, 0.0)
    pauses = {20: 5.0, 60: 5.0}
    now = 0.0
    for step in range(1, 101):
        now += 1.0 + pauses.get(step, 0.0)
        assert limit.steps_left(now=now, step=step, total=100, validations=lambda _: 0) is None


def test_the_first_steps_which_compile_shorten_nothing() -> None:
    limit, now = TimeLimit(200.0, 0.0, 0.0), 60.0
    for step in range(1, 101):
        now += 1.0
        assert limit.steps_left(now=now, step=step, total=100, validations=lambda _: 0) is None


def test_a_pause_that_takes_all_the_time_ends_the_run_with_a_step_at_the_lowest_rate() -> None:
    limit = TimeLimit(115.0, 0.0, 0.0)
    for step in range(1, 50):
        assert limit.steps_left(now=float(step), step=step, total=100, validations=lambda _: 0) is None
    assert limit.steps_left(now=200.0, step=50, total=100, validations=lambda _: 0) == 1
    limit = TimeLimit(115.0, 0.0, 0.0)
    for step in range(1, 50):
        limit.steps_left(now=float(step), step=step, total=100, validations=lambda _: 0)
    # It leaves ten seconds: a decay of as many steps as the machine took for before, less what is kept free.
    assert 5 <= limit.steps_left(now=105.0, step=50, total=100, validations=lambda _: 0) < 10


def test_a_length_that_was_not_shortened_leaves_every_step_where_it_is() -> None:
    length = RunLength.of(3, 4)
    assert [length.place(step) for step in range(20)] == list(range(20))
    assert all(type(length.place(step)) is int for step in range(20))
    assert [length.epoch_at(4 * epoch) for epoch in range(3)] == [0, 1, 2]
    assert all(type(length.epoch_at(4 * epoch)) is int for epoch in range(3))
    assert (length.epochs, length.end_of(2), length.summary(), str(length)) == (3, 12, {}, "3 epochs")
    assert length.restored({}) == length.restored(length.record()) == length


def test_earlier_steps_stay_where_they_were_through_any_number_of_shortenings() -> None:
    for seed in range(300):
        draws = random.Random(seed)
        length = RunLength.of(draws.randint(2, 40), draws.randint(3, 50))
        warmup, step = length.planned // 6, 0
        while step < length.total - 2:
            step = draws.randint(step + 1, length.total - 1)
            before = [length.place(s) for s in range(step)]
            length = length.shortened(step, draws.randint(1, length.total - step), warmup=warmup)
            assert [length.place(s) for s in range(step)] == before
        places = [length.place(s) for s in range(length.total)]
        assert places == sorted(places)
        assert places[-1] == length.planned - 1
        kept = RunLength.of(length.planned // length.steps, length.steps).restored(length.record())
        assert [kept.place(s) for s in range(length.total)] == places


@pytest.mark.parametrize(("name", "seed"), [*itertools.product(CURVES, range(20))])
def test_a_shortened_runs_rate_never_rises_after_its_warm_up_and_ends_as_the_whole_schedule_does(name, seed) -> None:
    draws, schedule = random.Random(seed), CURVES[name]
    schedule.epochs, steps = draws.randint(2, 40), draws.randint(3, 50)
    length, warmup = RunLength.of(schedule.epochs, steps), warmup_of(schedule, steps)
    rate = lambda place: rate_at(place, steps_per_epoch=steps, peak=1.0, schedule=schedule)  # noqa: E731
    step = draws.randint(1, length.total - 1)
    length = length.shortened(step, left := draws.randint(1, length.total - step), warmup=warmup)
    rates = [rate(length.place(s)) for s in range(length.total)]
    assert rates[:step] == [rate(s) for s in range(step)]
    assert rates[-1] == rate(length.planned - 1) == min(rate(s) for s in range(warmup, length.planned))
    top = rates.index(max(rates))
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    if step < warmup and left > 2:
        assert top - step <= max(length.total // 5 - step + 1, 2)  # a warm-up is a fifth at most
    if step < warmup <= length.total // 5:
        assert rates[:warmup] == pytest.approx([rate(s) for s in range(warmup)])  # and stays as it was


def test_a_warm_up_of_a_larger_share_keeps_its_share_when_the_run_is_shortened() -> None:
    schedule = ScheduleConfig(epochs=10, warmup_share=0.5)
    length, warmup = RunLength.of(10, 10), warmup_of(schedule, 10)
    assert warmup == 50
    length = length.shortened(10, 30, warmup=warmup)  # 40 steps instead of 100
    rates = [rate_at(length.place(s), steps_per_epoch=10, peak=1.0, schedule=schedule) for s in range(length.total)]
    assert rates.index(max(rates)) == 20
