"""A run that was given a time ends within it and with its schedule completed, whatever becomes of the machine."""

import pytest
import torch

import saccade
from saccade.runs.run import Run
from saccade.runs.state import load_state
from saccade.training import machine as fitting
from saccade.training.length import RunLength
from saccade.training.loop import Interrupted, Loop
from saccade.training.optim import rate_at, scaled_lr
from saccade.training.report import write_report
from saccade.training.watch import state_of
from support.slowing import SlowingMachine
from support.trainings import assert_same_end, png_folder, settings

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
