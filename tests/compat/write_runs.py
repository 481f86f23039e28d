"""Runs that a version leaves, for later ones to open: finished ones, and some killed in the middle.

PYTHONPATH=OLD/src:tests python tests/compat/write_runs.py FOLDER; packed as tests/golden/runs_before.tar.xz.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

import saccade
from saccade.cli import main
from saccade.training.loop import Loop
from support.bits import machine
from support.lists import write_task_lists
from support.masks import make_masks

MODEL = {"embed_dim": 8, "depth": 1, "num_heads": 2, "patch_size": 8}
PYRAMID = {
    "dims": [4, 4, 8, 8],
    "depths": [1] * 4,
    "pattern": ["G", "A", "A", "A"],
    "num_slots": 4,
    "num_heads": [2] * 4,
}
SETTINGS: dict[str, Any] = {
    "data.workers": 0,
    "optim.batch_size": 8,
    "optim.lr": 0.01,
    "schedule.epochs": 2,
    "engine.device": "cpu",
    "engine.threads": 1,
    "keep.every_steps": 2,
    "keep.states": 1,
}
TASKS: dict[str, dict[str, Any]] = {
    "multilabel": {"model.name": "vit_tiny_patch16_224", "model.options": MODEL, "data.img_size": 16},
    "regress": {"model.name": "vit_tiny_patch16_224", "model.options": MODEL, "data.img_size": 16},
    "segment": {
        "model.name": "glnet_nano",
        "model.options": PYRAMID,
        "model.head": "segformer:width=8",
        "data.img_size": 32,
    },
}
KILLED = ("regress", "segment")
KEPT = ("config.yaml", "metrics.jsonl", "model.safetensors", "summary.json", "decisions.json", "predictions.jsonl")


def sets(root: Path) -> dict[str, Path]:
    """Write the sets that the runs are of."""
    return {**write_task_lists(root), "segment": make_masks(root / "masks", train=24)}


def image(root: Path, task: str) -> Path:
    """Return an image to ask a run of a task of."""
    return root / ("masks/images/val/0.png" if task == "segment" else "images/030.png")


def write(home: Path) -> None:
    """Train each task, some killed after the fourth of six steps too, and keep what another version has to read."""
    root = home / "sets"
    for task, data in sets(root).items():
        runs = [home / task, *([home / f"{task}_killed"] if task in KILLED else [])]
        for run, last in zip(runs, (None, 4), strict=False):
            _train(data, task, run, last)
            for one in run.iterdir():
                if one.name not in (*KEPT, *(["state"] if last else [])):
                    shutil.rmtree(one) if one.is_dir() else one.unlink()
            config = run / "config.yaml"
            config.write_text(config.read_text().replace(str(root), "SETS"))
        asked = (home / task, image(root, task), "--out", home / task / "predictions.jsonl")
        main(["predict", *map(str, asked)])
    (home / "machine.txt").write_text(machine())
    shutil.rmtree(root)


def _train(data: Path, task: str, out: Path, last: int | None) -> None:
    """Train in a child, which dies after its last step if one is given."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    own, steps = Loop._step, iter(range(1, 1000))

    def step(self: Loop, *args: Any, **more: Any) -> Any:
        if next(steps) - 1 == last:
            os._exit(9)
        return own(self, *args, **more)

    Loop._step = step  # type: ignore[method-assign]
    saccade.train(str(data), task=task, out=out, settings={**SETTINGS, **TASKS[task]}, quiet=True)
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    write(Path(sys.argv[1]).resolve())
