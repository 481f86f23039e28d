"""How long a run takes is said before it begins; it is fitted to a time, or to the machine where nothing was named."""

import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

import saccade
from saccade.cli import main
from saccade.comparison.run.worker import probe
from saccade.data.validation import Validation
from saccade.runs.state import load_state
from saccade.settings import ConfigError, DataConfig
from saccade.support.durations import BudgetError
from saccade.tasks.opening import open_samples
from saccade.training import defaults, machine
from saccade.training import pace as paces
from saccade.training.console import Console
from saccade.training.loop import Interrupted, Loop
from saccade.training.machine import smaller_sides
from saccade.training.pace import Pace
from saccade.training.recipes import configure
from support.masks import make_masks, save_mask
from support.training import TINY, tiny

pytestmark = pytest.mark.usefixtures("few_answers")

FAST = Pace(startup=0.0, step=0.001, validation=0.0, steps=4)
SLOW = Pace(startup=1.0, step=10.0, validation=2.0, steps=10)


def settings(run):
    return yaml.safe_load((run / "config.yaml").read_text())


def test_epochs_that_fit_are_as_many_as_there_is_time_for_and_no_more():
    assert SLOW.most_epochs(1 + 3 * 100 + 4 * 2, most=100) == 3
    assert SLOW.most_epochs(1 + 3 * 100 + 4 * 2 - 0.1, most=100) == 2
    assert SLOW.most_epochs(1e9, most=100) == 100
    assert SLOW.most_epochs(50, most=100) == 0


def test_what_only_the_first_validation_takes_is_counted_once(monkeypatch):
    took = iter([7.0, 0.5])  # reading, and asking
    monkeypatch.setattr(paces, "_time", lambda *_: next(took))
    pace = probe(configure("quick", tiny()))
    parts = round(pace.validation / 0.5, 9)  # all validation images by those that were asked about
    assert parts > 1
    assert 7 * parts <= pace.startup < 7.5 * parts


@pytest.mark.parametrize(("read", "batch_size", "samples", "asked"), [(4, 16, 100, 16), (4, 16, 10, 8), (9, 9, 9, 9)])
def test_a_gpu_is_asked_about_batches_as_large_as_those_of_the_run(read, batch_size, samples, asked):
    validation = Validation.__new__(Validation)
    validation.places, validation.batch_size = torch.arange(read), batch_size
    validation.kept = [{"image": torch.zeros(read, 3, 2, 2), "place": torch.arange(read)}]
    assert paces._fill(validation, samples) == asked
    assert {name: len(part) for name, part in validation.kept[0].items()} == {"image": asked, "place": asked}


@pytest.mark.slow
def test_a_run_with_a_time_ends_within_it_with_its_schedule_completed(tmp_path, capsys):
    begun = time.monotonic()
    done = saccade.train(out=tmp_path / "run", settings=TINY | {"schedule.epochs": 100_000}, time="2m")
    assert time.monotonic() - begun < 120
    epochs = settings(done.path)["schedule"]["epochs"]
    assert 1 <= epochs < 100_000
    assert done.metrics["epoch"] == epochs
    assert done.metrics["lr"] < 1e-4  # it has come down to the schedule's end
    assert f"fitted to 2 min: {epochs:,} epochs instead of 100000, about " in capsys.readouterr().err


def test_a_machine_that_becomes_slower_ends_the_run_within_its_time(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "measure_pace", lambda *_, **__: Pace(0.0, 1e-6, 0.0, 4))
    monkeypatch.setattr(machine, "AFTERWARDS", 118.0)  # two seconds are left to train
    done = saccade.train(out=tmp_path / "run", settings=TINY | {"schedule.epochs": 100_000}, time="2m")
    assert 1 <= done.metrics["epoch"] < 100_000
    told = " ".join(capsys.readouterr().err.split())
    assert told.index("timing a few steps") < told.index("epoch 1/")
    assert "steps are slower than estimated: " in told
    assert "(the machine became slower; planned were 100,000 epochs, 400,000 steps)" in told
    assert done.metrics["lr"] == pytest.approx(1e-5, rel=1e-3)  # the schedule's lowest
    assert (done.path / "model.safetensors").exists()
    assert load_state(done.path / "state").record["epoch"] == done.metrics["epoch"]


def test_what_went_by_before_it_was_asked_for_belongs_to_its_time_and_so_does_closing():
    slow = machine.BudgetFitter(240.0, start=100.0, asked=112.0)  # imports took twelve seconds
    assert slow.deadline == 100 + 240 - 12
    assert machine.BudgetFitter(240.0, start=100.0, asked=101.0).deadline == 100 + 240 - machine.AFTERWARDS
    assert (
        machine.BudgetFitter(240.0, start=100.0, asked=190.0).deadline == 100 + 240 - 24
    )  # a slow disk is no slow machine


def test_the_command_counts_from_its_start(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("saccade.training.train.train", lambda *_, since, **_given: seen.append(since))
    before = time.monotonic()
    assert main(["train", "--time", "2m", "--out", str(tmp_path / "run")]) == 0
    assert before <= seen[0] <= time.monotonic()
    assert main(["train", "--time", "2m", "--out", str(tmp_path / "run")]) == 0
    assert seen[0] < seen[1]  # not since this process began


def test_a_run_that_was_fitted_resumes_to_the_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "measure_pace", lambda *_, **__: Pace(0.0, 1.0, 0.0, 4))
    monkeypatch.setattr(machine, "monotonic", lambda: 1e12)  # no time passes, and there is enough of it
    whole = saccade.train(out=tmp_path / "whole", settings=TINY, time=20, quiet=True)
    assert settings(whole.path)["schedule"]["epochs"] == 3  # (20 - 5) / (4 * 1.15)
    assert (whole.metrics["epoch"], whole.metrics["step"]) == (3, 12)
    assert whole.metrics["lr"] < 0.2 * settings(whole.path)["optim"]["lr"]  # it has come down to the schedule's end
    original = Loop._checkpoint_or_stop

    def stop(self):
        self.stop_signal = 2 if self.step == 6 else None
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_checkpoint_or_stop", stop)
        with pytest.raises(Interrupted):
            saccade.train(out=tmp_path / "stopped", settings=TINY, time=20, quiet=True)
    monkeypatch.setattr(machine, "measure_pace", lambda *_, **__: pytest.fail("a resumed run is not fitted again"))
    saccade.train(resume=tmp_path / "stopped", quiet=True)
    ends = [load_state(tmp_path / name / "state").tensors for name in ("whole", "stopped")]
    assert all((ends[0][name] == ends[1][name]).all() for name in ends[0])
    with pytest.raises(ConfigError, match="a resumed run keeps its number of epochs"):
        saccade.train(resume=tmp_path / "stopped", time="10m")


@pytest.fixture
def asked(monkeypatch):
    """What each candidate that was timed asked for; `pace` answers."""
    seen = []

    def choose(given=(), *, recipe=None, seconds=None, pace):
        def probe(config, *_, **__):
            seen.append((config.model.options.get("dims"), config.data.img_size))
            return pace(config)

        monkeypatch.setattr(machine, "measure_pace", probe)
        config = configure(recipe, dict(given))
        choice, data = open_all(config)
        free = recipe is None and not machine.sets_run_length(dict(given))
        return seen, machine.BudgetFitter(seconds, free=free).fit(config, choice, data, ALONE, CPU)

    return choose


def test_where_nothing_was_named_a_slow_machine_gets_a_smaller_model_and_fewer_epochs(asked):
    pace = lambda config: Pace(0.0, 20.0 if not config.model.options else 1.0, 0.0, 10)  # noqa: E731
    seen, (config, said) = asked(pace=pace)
    assert seen == [(None, None), ([32, 64, 128], None)]
    assert config.schedule.epochs == int((900 - 5) / (10 * 1.15))
    assert len(said) == 1
    assert "the smaller glnet_nano of the recipe quick, 77 epochs instead of 100" in said[0]
    assert f"{len(os.sched_getaffinity(0))} CPU core" in said[0]
    assert "4,000 training images" in said[0]


def test_a_machine_that_is_fast_enough_trains_what_was_asked_and_says_how_long(asked):
    seen, (config, said) = asked(pace=lambda _: FAST)
    assert (len(seen), config.schedule.epochs, config.model.options) == (1, 100, {})
    assert said[0].startswith("100 epochs, about 0.5 s (")


@pytest.mark.parametrize(
    ("given", "recipe"),
    [({"schedule.epochs": 7}, None), ({"model.name": "resnet18"}, None), ({}, "small"), ({"data.img_size": 64}, None)],
)
def test_what_was_named_is_left_as_it_is(asked, given, recipe):
    seen, (config, said) = asked(given, recipe=recipe, pace=lambda _: SLOW)
    assert (seen, said) == ([], [])
    assert config == configure(recipe, given)


@pytest.mark.parametrize(("thickness", "sides"), [(60, [192, 128]), (3, [352, 256, 224, 192, 128])])
def test_sizes_to_try_on_a_cpu_begin_below_what_thin_details_ask_for(thickness, sides, tmp_path):
    root = make_masks(tmp_path, size=(480, 360))
    for file in (root / "masks" / "train").iterdir():
        mask = np.zeros((360, 480), np.uint8)
        mask[:100], mask[200 : 200 + thickness] = 2, 1
        save_mask(file, mask)
    assert list(smaller_sides(*open_samples("segment", DataConfig(path=str(root))))) == sides


def test_a_dense_task_gets_a_time_by_its_images_and_a_smaller_model_before_smaller_images(asked, tmp_path):
    data = {"data.path": str(make_masks(tmp_path, train=80, size=(160, 120))), "task": "segment"}
    slow = lambda config: Pace(0.0, 4.0 if (config.data.img_size or 160) > 100 else 0.2, 0.0, 5)  # noqa: E731
    seen, (config, said) = asked(data, pace=slow)
    assert seen == [(None, None), ([32, 64, 128], None), ([32, 64, 128], 96)]
    assert 60 < config.schedule.epochs <= (80 - 5) / (5 * 0.2 * 1.15)  # 80 images: 80 seconds
    assert "fitted to" in said[0]
    slower = lambda _: Pace(0.0, 100.0, 0.0, 5)  # noqa: E731
    assert asked(data, pace=slower)[1][0].schedule.epochs == 50  # 250 steps, however long they take


def fitted_to_many(data, given, device, *, recipe=None):
    config = configure(recipe, {"data.path": str(data), **given})
    choice, opened = open_all(config)
    free = recipe is None and not machine.sets_run_length(given)
    said = []
    fitting = machine.BudgetFitter(free=free, given={"data.path": str(data), **given}, say=said.append)
    return fitting.fit(config, choice, opened, ALONE, torch.device(device))[0], said


@pytest.fixture
def many(tmp_path, monkeypatch):
    monkeypatch.setattr(defaults, "MIN_CIFAR_SAMPLES", 40)
    draws = np.random.default_rng(0)
    images, labels = draws.integers(0, 255, (50, 32, 32, 3), dtype=np.uint8), np.arange(50) % 5
    np.savez(tmp_path / "many.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    return tmp_path / "many.npz"


def test_many_small_images_get_the_recipe_that_was_measured_with_such_on_a_gpu(many):
    config, said = fitted_to_many(many, {"augment.mix_prob": 0.3, "seed": 4}, "cuda")
    assert (config.recipe, config.optim.name, config.model.options["dims"]) == ("cifar", "nmuon", [96, 192])
    assert (config.augment.mix_prob, config.seed, config.data.path) == (0.3, 4, str(many))
    assert "override with --recipe small" in said[0]


@pytest.mark.parametrize(
    ("given", "recipe"),
    [
        ({"schedule.epochs": 7}, None),
        ({"model.name": "resnet18"}, None),
        ({}, "small"),
        ({"data.train_limit": 39}, None),
    ],
)
def test_others_keep_their_settings_on_a_gpu(many, given, recipe):
    config, said = fitted_to_many(many, given, "cuda", recipe=recipe)
    assert (config.recipe, said) == ("small", [])


def test_larger_images_and_a_cpu_have_nothing_of_it(many, monkeypatch):
    assert defaults.is_like_cifar(open_all(configure(None, {"data.path": str(many)}))[1].train, None)
    monkeypatch.setattr(defaults, "MAX_CIFAR_SIDE", 31)
    assert fitted_to_many(many, {}, "cuda")[0].recipe == "small"
    monkeypatch.setattr(defaults, "MAX_CIFAR_SIDE", 32)
    monkeypatch.setattr(machine, "measure_pace", lambda *_, **__: FAST)
    assert fitted_to_many(many, {}, "cpu")[0].recipe == "small"


def test_a_time_without_room_for_an_epoch_is_refused_with_how_long_one_takes(asked):
    with pytest.raises(BudgetError, match="one epoch takes about 2 min; give more time, a smaller model"):
        asked({"model.name": "resnet18"}, seconds=60, pace=lambda _: SLOW)


@pytest.mark.parametrize("text", ["soon", "", "-3m", "0s", "10"])
def test_a_time_that_is_none_is_refused_in_words(text, capsys):
    assert main(["train", "--time", text] if not text.startswith("-") else ["train", f"--time={text}"]) == 2
    assert "time=" in capsys.readouterr().err


def test_a_log_without_a_terminal_says_how_long_it_takes_and_moves_on(monkeypatch, capsys):
    clock = iter(range(0, 100_000, 4))
    # This module's clock alone: a server's thread that reads the patched one would sleep until the real time is over.
    monkeypatch.setattr("saccade.training.console.time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    console = Console()
    console.expect(configure(None, {"schedule.epochs": 50, "optim.batch_size": 10}), 20, 100, estimated=False)
    console.begin_epoch(0, 0, 20)
    totals = machine.torch.tensor([30.0, 10.0])
    for _ in range(20):
        console.advance(totals)
    err = capsys.readouterr().err
    assert err.count("(estimated from the first 3 steps); use --time 10m") == 1
    assert "50 epochs x 20 steps, about " in err
    lines = [line for line in err.splitlines() if line.startswith("epoch 1/50  step ")]
    assert 2 <= len(lines) <= 4
    assert all("loss 3.000" in line and " left" in line for line in lines)


def test_a_run_of_seconds_is_not_spoken_of(monkeypatch, capsys):
    clock = iter(number * 0.7 for number in range(1000))
    monkeypatch.setattr("saccade.training.console.time", SimpleNamespace(monotonic=lambda: next(clock)))
    console = Console()
    console.expect(configure(None, {"schedule.epochs": 1, "optim.batch_size": 10}), 8, 10, estimated=False)
    console.begin_epoch(0, 0, 8)
    for _ in range(8):
        console.advance(machine.torch.tensor([30.0, 10.0]))
    assert capsys.readouterr().err == ""


def test_one_epoch_is_not_many(tmp_path, capsys):
    saccade.train(epochs=1, out=tmp_path / "run", settings=tiny())
    err = capsys.readouterr().err
    assert "epoch 1/1  loss" in err
    assert "1 epoch, 4 steps" in err


ALONE, CPU = machine.World(), machine.torch.device("cpu")


def open_all(config):
    from saccade.tasks.opening import open_samples

    return open_samples(config.task, config.data)


@pytest.mark.parametrize(("steps", "kept"), [((25, 10), 2), ((10, 10), 1)])
def test_smaller_images_are_taken_if_their_epochs_are_faster_whatever_a_step_takes(steps, kept):
    paces = [Pace(0.0, step, 0.0, count) for step, count in zip((0.100, 0.101), steps, strict=True)]
    left = iter(machine.Tried(configure(None, {}), pace, 5, 100) for pace in paces)
    tried = machine.try_smaller([configure(None, {})] * 2, lambda _: next(left), lambda: False)
    assert len(tried) == kept
