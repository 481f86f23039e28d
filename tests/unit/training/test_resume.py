"""A run that stops anywhere, for any reason, says why, and ends as if it had never stopped."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from saccade.data.loader import TooManyBad
from saccade.runs import state as states
from saccade.runs.run import Run
from saccade.runs.state import StateError, list_states
from saccade.settings import machine_rules, to_yaml
from saccade.settings.decisions import put
from saccade.training import loop as loops
from saccade.training.length import RunLength
from saccade.training.loop import Interrupted, Loop, TrainingError
from saccade.training.resumed import reopened_config
from saccade.training.train import train
from support.fresh import command, start
from support.trainings import assert_same_end, environment, png_folder, settings, train_with_kills

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot be read")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return png_folder(tmp_path_factory.mktemp("pictures"), bad=1)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A run that nothing happened to: nine steps, a state at every second."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    train(str(data), out=out, settings=settings(), quiet=True)
    return out


@pytest.fixture
def stopped(data, tmp_path):
    """A run that was killed in its second epoch."""
    out = tmp_path / "stopped"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_checkpoint_or_stop", stop_after(5, KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(str(data), out=out, settings=settings(), quiet=True)
    assert [path.name for path in list_states(out / "state")] == ["step-000000002", "step-000000004"]
    return out


def stop_after(step, error):
    original = Loop._checkpoint_or_stop

    def look_up(self):
        if self.step == step:
            raise error
        original(self)

    return look_up


def shard(run):
    return run / "state" / "step-000000004" / "shard-0-of-1.safetensors"


def test_two_kills_of_a_real_process_leave_no_trace(data, whole, tmp_path):
    values = settings(data__workers=1, data__resident="never")
    statuses = train_with_kills(tmp_path / "killed", data, values, [("step", 5), ("shard", 2)])
    assert statuses == [-9, -9, 0]
    assert_same_end(tmp_path / "killed", whole)


def test_resumed_run_equals_uninterrupted_run(stopped, whole):
    train(resume=stopped, quiet=True)
    assert_same_end(stopped, whole)


def test_what_the_machine_decided_is_decided_anew_on_resuming(stopped, whole, monkeypatch):
    assert Run(stopped).config().data.resident == "always"
    record = []
    assert reopened_config(Run(stopped), record).data.resident == "auto"
    assert not {"data.resident", "engine.graphs", "engine.kernels"} & {one.setting for one in record}
    monkeypatch.setattr(machine_rules, "LIMIT", 1)  # a machine with less memory
    train(resume=stopped, quiet=True)
    assert Run(stopped).config().data.resident == "never"
    assert_same_end(stopped, whole)


def test_run_of_an_earlier_version_with_undecided_settings_is_resumed(stopped, whole):
    config = Run(stopped).config()
    earlier = put(config, {"engine.graphs": None, "data.resident": "auto"})
    Run(stopped).settings.write_text(to_yaml(earlier))
    (stopped / "decisions.json").unlink()
    train(resume=stopped, quiet=True)
    assert Run(stopped).config() == config
    assert_same_end(stopped, whole)


def test_run_gives_the_same_bits_whatever_the_program_around_it_set(data, whole, tmp_path):
    onednn = torch.backends.mkldnn
    try:
        onednn.enabled = False
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        train(str(data), out=tmp_path / "run", settings=settings(), quiet=True)
        found = onednn.enabled, torch.get_default_dtype(), torch.get_float32_matmul_precision()
    finally:
        onednn.enabled = True
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
    assert_same_end(tmp_path / "run", whole)
    assert found == (False, torch.float64, "medium")


def test_every_step_and_validation_begins_with_the_same_ways_to_compute(data, tmp_path, monkeypatch):
    begun = []

    def failing(name, original):
        def call(*args, **options):
            begun.append((name, torch.backends.mkldnn.enabled))
            found = original(*args, **options)
            torch.backends.mkldnn.enabled = False  # as PyTorch does when a product fails
            return found

        return call

    monkeypatch.setattr(Loop, "_forward_backward", failing("step", Loop._forward_backward))
    monkeypatch.setattr(loops, "validate", failing("validation", loops.validate))
    train(str(data), out=tmp_path / "run", settings=settings(schedule__epochs=1), quiet=True)
    assert begun == [("step", True)] * 3 + [("validation", True)]


@pytest.mark.parametrize("damage", ["truncated", "bit", "record bit", "record missing", "leftover"])
def test_damaged_newest_state_is_told_of_and_the_one_before_taken(stopped, whole, capsys, damage):
    content = bytearray(shard(stopped).read_bytes())
    record = shard(stopped).with_name("state.json")
    if damage == "truncated":
        shard(stopped).write_bytes(content[: len(content) // 2])
    elif damage == "bit":
        content[len(content) // 2] ^= 1
        shard(stopped).write_bytes(content)
    elif damage == "record bit":
        text = bytearray(record.read_bytes())
        text[len(text) // 2] ^= 1
        record.write_bytes(text)
    elif damage == "record missing":
        record.unlink()
    else:
        shutil.copytree(shard(stopped).parent, stopped / "state" / ".step-000000006.part")
    train(resume=stopped)
    told = " ".join(capsys.readouterr().err.split())
    assert ("step-000000004 is damaged and was skipped" in told) == (damage != "leftover")
    assert f"at step {4 if damage == 'leftover' else 2} " in told
    assert_same_end(stopped, whole)


def test_run_without_an_intact_state_says_so(stopped):
    for place in list_states(stopped / "state"):
        (place / "state.json").unlink()
    with pytest.raises(StateError, match=r"no intact state.*step-000000004.*step-000000002.*Start a new run"):
        train(resume=stopped, quiet=True)


def test_run_killed_before_its_first_state_begins_at_the_start(stopped, whole):
    shutil.rmtree(stopped / "state")
    (stopped / "metrics.jsonl").unlink()
    train(resume=stopped, quiet=True)
    assert_same_end(stopped, whole)


def test_run_that_lost_its_states_is_not_trained_over(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(run / "state")
    with pytest.raises(StateError, match="holds no saved state although"):
        train(resume=run, quiet=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_and_stops_and_the_end_is_the_same(data, whole, tmp_path, monkeypatch, number):
    original = Loop._forward_backward

    def step(self, *args, **options):
        original(self, *args, **options)
        if self.step == 4:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Loop, "_forward_backward", step)
    handler = signal.getsignal(number)
    with pytest.raises(Interrupted) as stop:
        train(str(data), out=tmp_path / "run", settings=settings(keep__every_steps=1000), quiet=True)
    assert stop.value.number == number
    assert signal.getsignal(number) is handler
    assert list_states(tmp_path / "run" / "state")[-1].name == "step-000000005"
    monkeypatch.undo()
    train(resume=tmp_path / "run", quiet=True)
    assert_same_end(tmp_path / "run", whole)


def test_interrupted_command_with_reading_processes_ends_with_the_signals_status(data, tmp_path):
    out = tmp_path / "run"
    options = [
        f"{name}={value}"
        for name, value in settings(schedule__epochs=200, data__workers=2, data__resident="never").items()
    ]
    words = [word for option in options for word in ("--set", option)]
    process = start(command, ["train", str(data), "--out", str(out), *words], log=tmp_path / "log.txt")
    while process.is_alive() and not (out / "state" / "step-000000004").exists():
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the group
    process.join(timeout=60)
    told = (tmp_path / "log.txt").read_text()
    assert process.exitcode == 130, told
    assert "--resume" in told
    assert told.count("saving and stopping") == 1
    last = int(list_states(out / "state")[-1].name.split("-")[1].split(".")[0])
    assert last >= 4


def test_loss_that_is_no_number_stops_and_the_run_can_go_on(data, whole, tmp_path, monkeypatch):
    original = Loop._count

    def count(self, answer, labels):
        original(self, answer | {"loss": answer["loss"] * (float("nan") if self.step == 4 else 1)}, labels)

    monkeypatch.setattr(Loop, "_count", count)
    with pytest.raises(TrainingError, match=r"loss is not a finite number at step 5.*lower optim.lr.*--resume"):
        train(str(data), out=tmp_path / "run", settings=settings(), quiet=True)
    monkeypatch.undo()
    train(resume=tmp_path / "run", quiet=True)
    assert_same_end(tmp_path / "run", whole)


def test_weights_that_are_no_numbers_are_never_saved(data, whole, tmp_path, monkeypatch):
    original = Loop._forward_backward

    def step(self, *args, **options):
        original(self, *args, **options)
        if self.step == 5:
            next(self.task.parameters()).data.view(-1)[0] = float("inf")

    monkeypatch.setattr(Loop, "_forward_backward", step)
    with pytest.raises(TrainingError, match="a weight is not a finite number at step 6"):
        train(str(data), out=tmp_path / "run", settings=settings(), quiet=True)
    monkeypatch.undo()
    train(resume=tmp_path / "run", quiet=True)
    assert_same_end(tmp_path / "run", whole)


def test_device_out_of_memory_is_said_with_what_to_do(data, tmp_path, monkeypatch):
    def step(self, *args, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(Loop, "_forward_backward", step)
    with pytest.raises(TrainingError, match=r"ran out of memory at step 0: CUDA.*optim.accumulate=4"):
        train(str(data), out=tmp_path / "run", settings=settings(), quiet=True)


def test_full_disk_leaves_earlier_states_and_the_end_is_the_same(data, whole, tmp_path, monkeypatch):
    original = states.save_file
    written = []

    def save_file(tensors, path):
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        original(tensors, path)

    monkeypatch.setattr(states, "save_file", save_file)
    with pytest.raises(StateError, match=r"step 6 could not be written.*No space left.*make room"):
        train(str(data), out=tmp_path / "run", settings=settings(), quiet=True)
    monkeypatch.undo()
    train(resume=tmp_path / "run", quiet=True)
    assert_same_end(tmp_path / "run", whole)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="no limit on file sizes here")
def test_limit_on_file_sizes_is_said_like_a_full_disk(data, tmp_path):
    script = (
        "import resource, sys; from saccade.cli import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)); sys.exit(main(sys.argv[1:]))"
    )
    words = [word for name, value in settings().items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-c", script, "train", str(data), "--out", str(tmp_path / "run"), *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 2, done.stderr
    assert "could not be written" in done.stderr
    assert "make room" in done.stderr


def test_vanished_data_is_said_and_the_run_goes_on_when_they_are_back(data, whole, tmp_path, monkeypatch):
    moved = shutil.copytree(data, tmp_path / "data")
    original = Loop._checkpoint_or_stop

    def look_up(self):
        original(self)
        if self.step == 4:
            os.rename(moved, tmp_path / "elsewhere")

    monkeypatch.setattr(Loop, "_checkpoint_or_stop", look_up)
    with pytest.raises(TooManyBad, match="cannot be read"), pytest.warns(UserWarning, match="does not exist"):
        train(str(moved), out=tmp_path / "run", settings=settings(data__resident="never"), quiet=True)
    monkeypatch.undo()
    train(resume=tmp_path / "run", settings={"data.path": str(data)}, quiet=True)
    assert_same_end(tmp_path / "run", whole)


def test_death_of_a_reading_process_is_said(data, tmp_path, monkeypatch):
    original = Loop._checkpoint_or_stop

    def look_up(self):
        original(self)
        if self.step == 2:
            for worker in self.feed.loader._iterator._workers:
                os.kill(worker.pid, signal.SIGKILL)

    monkeypatch.setattr(Loop, "_checkpoint_or_stop", look_up)
    values = settings(data__workers=2, data__resident="never", schedule__epochs=50)
    with pytest.raises(TrainingError, match=r"data-loading process was killed.*--workers 1"):
        train(str(data), out=tmp_path / "run", settings=values, quiet=True)


def test_noise_of_processes_differs():
    class Stand:
        config, step, average, optimizer = loops.TrainConfig(), 3, None, torch.optim.SGD([torch.zeros(1)])
        new_only_steps, device, length = 0, torch.device("cpu"), RunLength.of(1, 10)

        def _rate(self, step):
            return 0.1

    seeds = []
    for rank in range(2):
        Stand.world = type("World", (), {"rank": rank})
        Loop._prepare(Stand())
        seeds.append(torch.initial_seed())
    assert seeds[0] != seeds[1]
