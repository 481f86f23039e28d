"""Runs as earlier versions left them, which counted in the model's square."""

import json
import shutil
from pathlib import Path

from safetensors import safe_open

from saccade.runs.weights import save_tensors


def without_frame(run: Path, folder: Path) -> Path:
    """Return a copy of a finished run that says nothing of its frame."""
    copy = Path(shutil.copytree(run, folder / "run"))
    for name in ("model.safetensors", "scores.safetensors"):
        with safe_open(copy / name, framework="pt") as opened:
            about = json.loads(opened.metadata()["saccade"])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, it is no mapping
        assert (about.get("spec") or about)["extra"].pop("frame") == "image"
        save_tensors(copy / name, tensors, metadata={"saccade": json.dumps(about)})
    return copy
