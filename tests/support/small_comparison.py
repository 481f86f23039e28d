"""Helpers that several files of the tests of compare use."""

from pathlib import Path

import numpy as np

from saccade.training.pace import Pace
from support.comparisons import SETTINGS

ARMS = ["base", "broadcast+drloc:pairs=8", "same:=keep.evaluate_every=5"]


PACE = Pace(startup=1.0, step=0.1, validation=1.0, steps=3, how="told by the test")


def options(out, **more):
    settings = {**SETTINGS, "data.img_size": 16}
    found = {"arms": ARMS, "seeds": 3, "epochs": 1, "out": str(out), "settings": settings, "device": "cpu"}
    return {**found, "quiet": True, **more}


def write_images(path, shift=0):
    images = np.random.default_rng(0).integers(0, 200, (60, 16, 16, 1), dtype=np.uint8) + np.uint8(shift)
    labels = np.arange(60) % 3
    held = {"val_images": images[40:], "val_labels": labels[40:]}
    np.savez(path, train_images=images[:40], train_labels=labels[:40], **held)


def small(out, **more):
    return options(out, **{"settings": SMALL, **more})


SMALL = {**SETTINGS, "data.train_limit": None, "optim.batch_size": 16, "keep.every_steps": None}


def times(out: Path) -> dict[str, float]:
    files = [file for file in (out / "runs").rglob("*") if file.is_file() and not file.name.startswith(".")]
    return {str(file.relative_to(out)): file.stat().st_mtime_ns for file in files}
