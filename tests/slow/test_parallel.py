"""Two processes under torchrun compute what one computes, go on from each other's states, and survive a death."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file

from saccade.building.build import load_model
from saccade.runs.state import list_states
from support.trainings import environment, png_folder, records, settings, weights

pytestmark = pytest.mark.slow

VIT = {
    "model.name": "vit_tiny_patch16_224",
    "model.options": {"embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 4},
    "model.drop_path": 0.0,  # each process draws its own noise, so only a model without any is comparable
    "optim.batch_size": 33,
    "augment.repeats": 1,
    "keep.states": 100,
}


@pytest.fixture
def data(tmp_path):
    return png_folder(tmp_path / "data", train=101, val=21)


def command(out: Path, data: Path, values: dict, *, processes: int, restarts: int = 0) -> list[str]:
    """Return the command that trains by a recipe file, which holds all settings."""
    recipe = out.with_suffix(".yaml")
    recipe.write_text(yaml.safe_dump(values | {"data.path": str(data)}))
    return [*launcher(processes, restarts), "train", "--recipe", str(recipe), "--out", str(out)]


def launcher(processes: int, restarts: int = 0) -> list[str]:
    if processes == 1:
        return [sys.executable, "-m", "saccade.cli"]
    options = ["--standalone", f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
    return [sys.executable, "-m", "torch.distributed.run", *options, "-m", "saccade.cli"]


def run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]


def assert_close(run: Path, reference: Path) -> None:
    ours, theirs = records(run), records(reference)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("train_loss", "val_loss"):
            assert mine[name] == pytest.approx(other[name], rel=1e-5)
        assert (mine["val_top1"], mine["train_top1"]) == (other["val_top1"], other["train_top1"])
    for name, value in weights(run).items():
        torch.testing.assert_close(value, weights(reference)[name], rtol=1e-3, atol=1e-4)


def test_two_processes_learn_as_one_does_from_uneven_batches(tmp_path, data):
    values = settings(data__workers=1) | VIT
    run(command(tmp_path / "one", data, values, processes=1))
    run(command(tmp_path / "two", data, values, processes=2))
    assert_close(tmp_path / "two", tmp_path / "one")
    assert records(tmp_path / "two")[-1]["step"] == 9  # three batches of 33 in 101 images, three epochs
    answers = load_file(tmp_path / "two" / "predictions.safetensors")
    assert answers["place"].tolist() == list(range(21))
    assert json.loads((tmp_path / "two" / "summary.json").read_text())["validation"]["samples"] == 21


def test_two_processes_weigh_classes_as_one_does(tmp_path, data):
    values = settings(augment__mixup=0.0, augment__cutmix=0.0, loss__class_weights=[0.2, 1.0, 5.0]) | VIT
    run(command(tmp_path / "one", data, values | {"optim.accumulate": 1}, processes=1))
    run(command(tmp_path / "two", data, values, processes=2))
    assert_close(tmp_path / "two", tmp_path / "one")


def test_set_smaller_than_a_batch_is_shared_out_too(tmp_path):
    data = png_folder(tmp_path / "data", train=15, val=5)
    values = settings(augment__repeats=1, optim__accumulate=1) | VIT
    run(command(tmp_path / "one", data, values, processes=1))
    run(command(tmp_path / "two", data, values, processes=2))
    assert_close(tmp_path / "two", tmp_path / "one")


def test_sharded_run_goes_on_in_one_process_and_in_two(tmp_path, data):
    values = settings() | VIT
    run(command(tmp_path / "one", data, values, processes=1))
    run(command(tmp_path / "sharded", data, values | {"engine.parallel": "fsdp"}, processes=2))
    assert_close(tmp_path / "sharded", tmp_path / "one")
    for step, processes in ((4, 1), (4, 2), (6, 2)):  # 6 is the end of an epoch: validation comes before any step
        part = tmp_path / f"from{step}in{processes}"
        shutil.copytree(tmp_path / "sharded", part)
        rewind(part, step)
        run([*launcher(processes), "train", "--resume", str(part)])
        assert_close(part, tmp_path / "sharded")
    parts = [load_file(tmp_path / "sharded" / f"state/step-000000004/shard-{i}-of-2.safetensors") for i in range(2)]
    name = "task.model.blocks.0.attn.qkv.weight"
    assert [part[name].shape for part in parts] == [(48, 32), (48, 32)]
    with safe_open(tmp_path / "sharded" / "model.safetensors", framework="pt") as file:
        assert file.get_tensor("blocks.0.attn.qkv.weight").shape == (96, 32)
    load_model(tmp_path / "sharded")


def rewind(run: Path, step: int) -> None:
    """Leave a run as if it had been killed right after a state was written."""
    for state in (run / "state").iterdir():
        if state.name > f"step-{step:09d}":
            shutil.rmtree(state)
    for name in ("model.safetensors", "summary.json", "predictions.safetensors"):
        (run / name).unlink()


def test_run_survives_the_death_of_a_worker(tmp_path, data):
    values = settings(data__workers=1, schedule__epochs=8, optim__batch_size=24, model__plugins=["drloc"])
    run(command(tmp_path / "whole", data, values, processes=2))
    out = tmp_path / "hurt"
    agent = subprocess.Popen(
        command(out, data, values, processes=2, restarts=2), env=environment(), stderr=subprocess.PIPE, text=True
    )
    while agent.poll() is None and not (out / "state" / "step-000000008").exists():
        time.sleep(0.02)
    os.kill(workers_of(agent.pid)[1], signal.SIGKILL)
    _, told = agent.communicate(timeout=300)
    assert agent.returncode == 0, told[-4000:]
    assert "resuming" in told
    assert records(out) == records(tmp_path / "whole")
    for name, value in weights(out).items():
        assert torch.equal(value, weights(tmp_path / "whole")[name]), name


def test_signal_to_torchrun_saves_in_both_processes_and_the_end_is_the_same(tmp_path, data):
    values = settings(schedule__epochs=8, optim__batch_size=24, keep__every_steps=1000)
    run(command(tmp_path / "whole", data, values, processes=2))
    out = tmp_path / "stopped"
    agent = subprocess.Popen(
        command(out, data, values, processes=2), env=environment(), stderr=subprocess.PIPE, text=True
    )
    while agent.poll() is None and not (out / "metrics.jsonl").exists():
        time.sleep(0.02)
    agent.send_signal(signal.SIGTERM)
    _, told = agent.communicate(timeout=300)
    assert agent.returncode != 0
    assert "stopped by SIGTERM" in told, told[-4000:]
    assert list_states(out / "state")[-1].name > "step-000000000"
    run([*launcher(2), "train", "--resume", str(out)])
    assert records(out) == records(tmp_path / "whole")
    for name, value in weights(out).items():
        assert torch.equal(value, weights(tmp_path / "whole")[name]), name


def workers_of(agent: int) -> list[int]:
    """Return the training processes that torchrun started."""
    children = [int(pid) for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]
    return [pid for pid in children if b"saccade.cli" in Path(f"/proc/{pid}/cmdline").read_bytes()]
