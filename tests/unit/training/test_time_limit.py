"""A run that was given a time ends within it and with its schedule completed, whatever becomes of the machine."""

import itertools
import random
from dataclasses import dataclass, field

import pytest
import torch

import saccade
from saccade.runs.run import Run
from saccade.runs.state import load_state
from saccade.settings import ScheduleConfig
from saccade.training import machine as fitting
from saccade.training.length import RunLength
from saccade.training.loop import Interrupted, Loop
from saccade.training.optim import rate_at, scaled_lr, warmup_of
from saccade.training.report import write_report
from saccade.training.time_limit import TimeLimit, whole_epochs
from saccade.training.watch import state_of
from support.slowing import SlowingMachine
from support.trainings import assert_same_end, png_folder, settings

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


# Trainings

EPOCHS, STEPS = 12, 2


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return png_folder(tmp_path_factory.mktemp("images"), train=16 * STEPS, val=6)


def train_slowed(
    out, data, monkeypatch, *, slow_from=18.0, epochs=EPOCHS, steps=STEPS, validation=0.5, quiet=True, **more
):
    """Train on a machine that becomes half as fast; return it, when it had to end, and what the run ended with."""
    machine = SlowingMachine(steps, slow_from, validation=validation)
    seconds = 1.15 * (epochs * steps + (epochs + 1) * machine.validation) + 0.01
    given = settings(schedule__epochs=epochs, augment__repeats=1, keep__every_steps=None, keep__every_seconds=1e9)
    with monkeypatch.context() as patch:
        machine.install(patch.setattr)
        time = seconds + fitting.AFTERWARDS
        done = saccade.train(str(data), out=out, settings=given | more, time=time, since=0.0, quiet=quiet)
    return machine, seconds, done


def lowest(run):
    """Return the learning rate that the whole schedule would have ended with."""
    config, summary = run.config(), run.summary()
    steps = summary.get("shortened", {}).get("planned_steps", summary["steps"])
    each = steps // config.schedule.epochs
    return rate_at(steps - 1, steps_per_epoch=each, peak=scaled_lr(config.optim), schedule=config.schedule)


@pytest.fixture(scope="module")
def slowed(data, tmp_path_factory):
    """A run whose machine became half as fast in the middle."""
    out = tmp_path_factory.mktemp("slowed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        return out, *train_slowed(out, data, patch)


def test_a_run_on_a_machine_that_becomes_half_as_fast_ends_in_time_at_its_lowest_rate(slowed):
    out, machine, until, done = slowed
    run = Run.open(out)
    assert machine.time <= until
    assert EPOCHS // 2 < done.metrics["epoch"] < EPOCHS
    assert done.metrics["lr"] == lowest(run)
    assert run.config().schedule.epochs == EPOCHS
    rates = [record["lr"] for record in run.metrics()]
    top = rates.index(max(rates))
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_a_run_that_was_shortened_says_so_in_its_files_and_on_its_page(slowed):
    out, _, _, done = slowed
    run, epochs = Run.open(out), done.metrics["epoch"]
    told = run.summary()["shortened"]
    assert (told["planned_epochs"], told["planned_steps"]) == (EPOCHS, EPOCHS * STEPS)
    records = run.metrics()
    assert records[-1]["shortened_to"] == epochs == run.summary()["epochs"]
    from_epoch = told["from_epoch"]
    assert all("shortened_to" not in record for record in records[: from_epoch - 1])
    assert all("shortened_to" in record for record in records[from_epoch - 1 :])
    page = write_report(run).read_text()
    assert f"shortened in epoch {from_epoch} to finish within the time budget: the machine became slower" in page
    assert f"{epochs} of {EPOCHS}" in page
    (out / "summary.json").rename(out / "kept")
    assert f"Epoch {epochs - 1} of {epochs};" in state_of(run, run.config(), records[:-1])
    (out / "kept").rename(out / "summary.json")


def test_a_shortening_is_said_once_where_it_is_decided(data, tmp_path, monkeypatch, capsys):
    _, _, done = train_slowed(tmp_path / "run", data, monkeypatch, quiet=False)
    told = " ".join(capsys.readouterr().err.split())
    assert told.count("steps are slower than estimated: ") == 1
    assert f" epochs instead of {EPOCHS} epochs, from epoch " in told
    assert f"{done.metrics['epoch']} epochs (the machine became slower; planned were {EPOCHS} epochs, " in told
    assert "--resume" not in told


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_a_run_that_stops_after_it_was_shortened_resumes_to_the_same_bits(slowed, data, tmp_path, monkeypatch, share):
    out, _, _, _ = slowed
    summary = Run.open(out).summary()
    first = summary["shortened"]["from_step"]
    step = first + int(share * (summary["steps"] - first))
    original = Loop._checkpoint_or_stop

    def die(self):
        original(self)
        if self.step == step:
            raise KeyboardInterrupt  # as a kill, it saves nothing

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_checkpoint_or_stop", die)
        with pytest.raises(KeyboardInterrupt):
            train_slowed(tmp_path / "run", data, patch)
    assert load_state(tmp_path / "run" / "state").record["length"]["pieces"]
    resumed = saccade.train(resume=tmp_path / "run", quiet=True)
    assert_same_end(tmp_path / "run", out)
    assert resumed.metrics["lr"] == lowest(Run.open(out))
    assert Run.open(tmp_path / "run").summary()["shortened"] == Run.open(out).summary()["shortened"]


def test_a_run_that_stops_before_it_was_shortened_trains_the_plan_it_had(data, tmp_path, monkeypatch):
    original = Loop._checkpoint_or_stop

    def stop(self):
        self.stop_signal = 2 if self.step == 10 else None
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_checkpoint_or_stop", stop)
        with pytest.raises(Interrupted):
            train_slowed(tmp_path / "run", data, patch)
    done = saccade.train(resume=tmp_path / "run", quiet=True)
    assert (done.metrics["epoch"], done.metrics["lr"]) == (EPOCHS, lowest(Run.open(tmp_path / "run")))
    assert "shortened" not in Run.open(tmp_path / "run").summary()


def test_a_run_that_was_shortened_has_come_to_its_end(slowed, capsys):
    out, _, _, done = slowed
    weights = (out / "model.safetensors").read_bytes()
    again = saccade.train(resume=out)
    assert "is already finished" in " ".join(capsys.readouterr().err.split())
    assert again.score == done.score
    assert (out / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize(("epochs", "slow_from", "validation"), [(2, 15.0, 0.5), (1, 6.0, 4.0)])
def test_a_run_of_few_long_epochs_ends_within_one_and_is_validated_there(
    tmp_path, monkeypatch, epochs, slow_from, validation
):
    steps, data = 16, png_folder(tmp_path / "images", train=16 * 16, val=6)
    machine, until, done = train_slowed(
        tmp_path / "run", data, monkeypatch, slow_from=slow_from, epochs=epochs, steps=steps, validation=validation
    )
    run = Run.open(tmp_path / "run")
    assert machine.time <= until
    assert (epochs - 1) * steps < done.metrics["step"] < epochs * steps
    assert (done.metrics["epoch"], done.metrics["lr"]) == (epochs, lowest(run))
    assert "val_loss" in done.metrics
    assert run.summary()["steps"] == done.metrics["step"]
    saccade.train(resume=tmp_path / "run", quiet=True)  # a short last epoch is not trained on
    assert run.metrics()[-1]["step"] == done.metrics["step"]


def test_what_goes_by_how_far_a_run_is_follows_the_shortened_schedule(data, tmp_path, monkeypatch):
    seen, strongs = [], []
    original = Loop._forward_backward

    def step(self, batch, draws, *, strong):
        strongs.append(strong)
        original(self, batch, draws, strong=strong)

    monkeypatch.setattr(Loop, "_forward_backward", step)
    monkeypatch.setattr("saccade.tasks.task.Task.set_epoch", lambda _, epoch, total: seen.append((epoch, total)))
    _, _, done = train_slowed(tmp_path / "run", data, monkeypatch, **{"augment.off_epochs": 4})
    epochs = done.metrics["epoch"]
    assert len(seen) == epochs < EPOCHS
    assert {total for _, total in seen} == {EPOCHS}
    told = [epoch for epoch, _ in seen]
    assert told[:3] == [0, 1, 2]
    assert told == sorted(told)
    assert told[-1] > EPOCHS - 3
    off = strongs.index(False)
    assert strongs == [True] * off + [False] * (len(strongs) - off)
    assert 0 < len(strongs) - off < 4 * STEPS  # a third of the schedule, of fewer steps


def test_weights_are_finite_and_a_state_of_an_earlier_version_is_of_a_whole_run(slowed):
    out = slowed[0]
    state = load_state(out / "state")
    assert all(torch.isfinite(value).all() for value in state.tensors.values())
    del state.record["length"]
    assert RunLength.of(3, 4).restored(state.record.get("length", {})) == RunLength.of(3, 4)
