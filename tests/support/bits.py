"""Ten steps of training in settings that reach every way data takes, and what stands for their end to the bit."""

import hashlib
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from .fresh import run_command
from .images import encoded, write_shard
from .trainings import png_folder, records, settings, weights

VIT = {
    "model.name": "vit_tiny_patch16_224",
    "model.options": {"embed_dim": 32, "depth": 2, "num_heads": 2, "patch_size": 4},
}
UNMIXED = {"augment.mixup": 0.0, "augment.cutmix": 0.0}
PLAIN = {"schedule.epochs": 2, "augment.crop": "pad", "augment.repeats": 1}


def machine() -> str:
    """Return what the last bits of sums depend on: the libraries, and the processor's kind of arithmetic."""
    kind = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return f"torch {torch.__version__.partition('+')[0]}, {kind}"


def shards(folder: Path) -> Path:
    for shard in range(5):
        numbers = range(shard * 16, (shard + 1) * 16)
        write_shard(folder / f"train-{shard:03d}.tar", [(f"{n:04d}", encoded(n), str(n % 3)) for n in numbers])
    write_shard(folder / "val-000.tar", [(f"v{n}", encoded(1000 + n), str(n % 3)) for n in range(9)])
    return folder


def one_shard_held_out(folder: Path) -> Path:
    samples = [(f"{n:04d}", encoded(n), ("cat", "dog", "owl")[n % 3]) for n in range(100)]
    write_shard(folder / "train-000.tar", samples)
    (folder / "classes.txt").write_text("cat\ndog\nowl\n")
    return folder


def folder(root: Path) -> Path:
    return png_folder(root, train=80, val=9, bad=1)


def nothing(_: Path) -> str:
    return ""


# name -> data, settings, processes
SETTINGS: dict[str, tuple[Callable[[Path], Any], dict[str, Any], int]] = {
    "embedded": (nothing, {**PLAIN, "data.train_limit": 80, "loss.smoothing": 0.1, "optim.accumulate": 1}, 1),
    "folder": (folder, {"schedule.epochs": 2, "data.workers": 1}, 1),
    "kept_weighted": (
        folder,
        {**PLAIN, "augment.mixup": 0.0, "augment.cutmix": 0.0, "loss.class_weights": [1.0, 2.0, 4.0]},
        1,
    ),
    "shards": (shards, {"schedule.epochs": 2, "augment.repeats": 1, "data.workers": 2, "data.buffer": 16}, 1),
    "stream_held_out": (one_shard_held_out, {"schedule.epochs": 2, "augment.repeats": 1, "data.val_share": 0.12}, 1),
    "drloc": (folder, {**VIT, "schedule.epochs": 2, "model.plugins": ["broadcast", "drloc:schedule=constant"]}, 1),
    "token_label": (
        folder,
        {**PLAIN, "augment.mixup": 0.0, "augment.cutmix": 0.0, "model.plugins": ["token_label"]},
        1,
    ),
    "two_processes": (
        folder,
        {
            **VIT,
            **PLAIN,
            "augment.mixup": 0.0,
            "augment.cutmix": 0.0,
            "model.drop_path": 0.0,
            "optim.batch_size": 15,
            "loss.class_weights": "balanced",
        },
        2,
    ),
}


def train_setting(name: str, place: Path) -> Path:
    """Train ten steps in processes of their own, since what ran before must not matter; return the run."""
    data, more, processes = SETTINGS[name]
    values = settings() | {"data.path": str(data(place / "data")), "keep.every_steps": None} | more
    recipe, out = place / "recipe.yaml", place / "run"
    recipe.write_text(yaml.safe_dump(values))
    run_command(["train", "--recipe", str(recipe), "--out", str(out)], place / "log.txt", processes=processes)
    return out


def describe(run: Path) -> dict[str, Any]:
    """Return what stands for a run's end: a digest of its weights, their sum for other machines, and its metrics."""
    digest, total = hashlib.sha256(), 0.0
    for name, value in sorted(weights(run).items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() + value.contiguous().numpy().tobytes())
        total += float(value.double().abs().sum())
    return {"weights": digest.hexdigest(), "sum": total, "metrics": records(run)}
