"""Small trainings, in this process or in children that are killed at chosen moments."""

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from .fresh import run

TINY = {"dims": [8, 16], "depths": [1, 1], "pattern": ["G", "A"], "num_slots": 4, "num_heads": [2, 2]}
EVERYTHING = {
    "augment.mixup": 0.2,
    "augment.cutmix": 1.0,
    "augment.mix_prob": 0.8,
    "augment.repeats": 2,
    "augment.erase": 0.25,
    "augment.rand_ops": 1,
    "augment.crop": "resized",
    "optim.accumulate": 2,
    "optim.clip": 1.0,
    "model.drop_path": 0.2,
    "keep.ema": 0.9,
}
TIMES = ("seconds", "images_per_second")


def settings(**more: Any) -> dict[str, Any]:
    """Return settings of a training of seconds, dots in names written as two underscores."""
    found = {"data.img_size": 16, "data.workers": 0, "optim.batch_size": 16, "model.options": TINY, "engine.threads": 1}
    found |= {"keep.every_steps": 2, "schedule.epochs": 3, "engine.device": "cpu"} | EVERYTHING
    found |= {name.replace("__", "."): value for name, value in more.items()}
    if not (found["augment.mixup"] or found["augment.cutmix"]):
        found.pop("augment.mix_prob", None)  # nothing reads it then
    return found


def png_folder(root: Path, *, train: int = 50, val: int = 9, classes: int = 3, bad: int = 0) -> Path:
    """Write images of 20 by 24 pixels whose colour tells their class; the first `bad` of each split are cut short."""
    for split, count in (("train", train), ("val", val)):
        for number in range(count):
            label = number % classes
            draws = np.random.default_rng((number, len(split)))
            pixels = draws.integers(0, 156, (20, 24, 3), dtype=np.uint8)
            pixels[..., label] += 100
            file = root / split / f"class{label}" / f"{number:03d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)
            if number < bad:
                file.write_bytes(file.read_bytes()[:300])
    return root


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def records(run: Path) -> list[dict[str, Any]]:
    """Return a run's metrics without what a clock tells."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def assert_same_end(run: Path, reference: Path) -> None:
    """Compare weights, answers and metrics of two runs bit by bit."""
    for name in ("model.safetensors", "predictions.safetensors"):
        ours, theirs = load_file(run / name), load_file(reference / name)
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert torch.equal(ours[key], theirs[key]), key
    assert records(run) == records(reference)


def kill_plan(count: int, seed: int) -> list[tuple[str, int]]:
    """Draw moments to die at: what is being done, and how often it has been done since the process began."""
    draws = random.Random(seed)
    moments = ["step", "step", "step", "checkpoint_or_stop", "shard", "record", "renamed", "append"]
    # Half of the deaths come late enough for the run to get somewhere.
    return [(draws.choice(moments), draws.choice([1, 2, 2, 3])) for _ in range(count)]


def train_with_kills(out: Path, data: Path | str, values: dict[str, Any], kills: list[tuple[str, int]]) -> list[int]:
    """Train in child processes, each killed at its moment and followed by one that resumes; return exit statuses."""
    told = out.with_name(f"{out.name}.txt")  # a pipe would stay open as long as the readers that a killed one leaves
    status = run(_train_until_done, out, str(data), values, kills, log=told)
    assert status == 0, told.read_text()[-4000:]
    return json.loads(told.read_text().splitlines()[-1])


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | more


def _train_until_done(out: Path, data: str, values: dict[str, Any], kills: list[tuple[str, int]]) -> None:
    """Fork one child a death; then one that lives."""
    from saccade.training.train import train

    torch.set_num_threads(1)
    statuses = []
    for kill in [*kills, None]:
        child = os.fork()
        if not child:
            if kill is not None:
                _die_at(*kill)
            begun = (out / "config.yaml").exists()
            how = {"resume": out} if begun else {"out": out, "data": data, "settings": values}
            status = 1
            try:
                train(quiet=True, **how)
                status = 0
            finally:
                if status:
                    sys.excepthook(*sys.exc_info())
                    sys.stderr.flush()
                os._exit(status)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(statuses), flush=True)


def _die_at(what: str, number: int) -> None:
    """Let this process kill itself when something is done for the number-th time."""
    from saccade.runs import state
    from saccade.runs.run import Run
    from saccade.training.loop import Loop

    left = [number]

    def now() -> bool:
        left[0] -= 1
        return left[0] == 0

    def before(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def instead(*args: Any, **options: Any) -> Any:
            if now():
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **options)

        setattr(owner, name, instead)

    def after(owner: Any, name: str, spoil: Any = None) -> None:
        original = getattr(owner, name)

        def instead(*args: Any, **options: Any) -> Any:
            result = original(*args, **options)
            if now():
                if spoil is not None:
                    spoil(*args)
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, name, instead)

    def halve(_: Any, path: Path) -> None:
        os.truncate(path, path.stat().st_size // 2)

    if what == "step":
        after(Loop, "_forward_backward")
    elif what == "checkpoint_or_stop":
        after(Loop, "_checkpoint_or_stop")
    elif what == "shard":
        after(state, "save_file", halve)
    elif what == "record":
        before(state, "_write_record")
    elif what == "renamed":
        left[0] = 3 * number  # each state syncs its shard, its draft, then the folder it was renamed into
        before(state, "_sync")
    else:
        left[0] = 1
        after(Run, "append")
