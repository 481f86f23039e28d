"""Comparisons of seconds, and runs that were never trained."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from saccade.settings import TrainConfig, to_yaml

TINY = {"dims": [8, 16], "depths": [1, 1], "pattern": ["G", "A"], "num_slots": 4, "num_heads": [2, 2]}
SETTINGS: dict[str, Any] = {
    "data.train_limit": 96,
    "optim.batch_size": 32,
    "model.options": TINY,
    "keep.every_steps": 1,
    "engine.threads": 1,
}


def write_run(
    path: Path,
    correct: np.ndarray,
    *,
    places: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    seconds: tuple[float, ...] = (1.0, 1.0),
    curve: tuple[float, ...] | None = None,
    fingerprint: str = "same",
    **scores: float,
) -> Path:
    """Write a finished run with given answers, right or wrong, one a validation image."""
    path.mkdir(parents=True)
    count = len(correct)
    places = np.arange(count) if places is None else places
    labels = np.zeros(count, np.int64) if labels is None else labels
    tensors = {
        "place": torch.from_numpy(np.asarray(places, np.int64)),
        "label": torch.from_numpy(np.asarray(labels, np.int64)),
        "correct": torch.from_numpy(np.asarray(correct, np.uint8)),
        "loss": torch.from_numpy(1.0 - np.asarray(correct, np.float32)),
    }
    save_file(tensors, path / "predictions.safetensors")
    save_file({}, path / "model.safetensors")
    (path / "config.yaml").write_text(to_yaml(TrainConfig()))
    curve = curve or (float(np.mean(correct)),) * len(seconds)
    lines = [
        json.dumps({"epoch": epoch, "step": 10 * epoch, "seconds": s, "val_top1": top1})
        for epoch, (s, top1) in enumerate(zip(seconds, curve, strict=True), 1)
    ]
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    summary = {
        "val_top1": float(np.mean(correct)),
        "epochs": len(seconds),
        "steps": 10 * len(seconds),
        "seconds": sum(seconds),
        "parameters": 7,
        "validation": {"samples": count, "fingerprint": fingerprint},
        "classes": ["cat", "dog"],
        **scores,
    }
    (path / "summary.json").write_text(json.dumps(summary))
    return path
