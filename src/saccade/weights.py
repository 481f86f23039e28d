"""The file of a trained model: its weights, and what is needed to build it and to feed it, as plain data."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from .config import ModelConfig, overlay
from .data.spec import InputSpec
from .files import whole_file
from .models import CheckpointError


def save_model(path: Path, weights: Mapping[str, Tensor], config: ModelConfig, spec: InputSpec) -> None:
    """Write weights with what is needed to build their model and to feed it."""
    model = {**asdict(config), "checkpoint": None, "pretrained": False, "probe": False}
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
    about = json.dumps({"model": model, **spec.to_dict()})
    save_tensors(path, tensors, metadata={"format": "pt", "saccade": about})


def save_tensors(path: Path, tensors: Mapping[str, Tensor], *, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file of a run whole or not at all."""
    with whole_file(path, then=f"go on by saccade train --resume {path.parent}") as draft:
        save_file(dict(tensors), draft, metadata=metadata)


def read_model(path: str | Path) -> tuple[ModelConfig, InputSpec, dict[str, Tensor], Path]:
    """Read a run's model: its settings, what goes in and comes out, its weights, and the file they are from.

    Args:
        path: a run's folder or its `model.safetensors`.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / "model.safetensors"
        if not file.exists():
            raise CheckpointError(
                f"{file.parent} holds no model.safetensors; a run gets one at its end: saccade train --resume "
                f"{file.parent}"
            )
    try:
        with safe_open(file, framework="pt") as opened:
            about = json.loads((opened.metadata() or {})["saccade"])
        weights = load_file(file)
    except FileNotFoundError:
        raise CheckpointError(f"there is no {file}") from None
    except (SafetensorError, KeyError, ValueError):
        raise CheckpointError(
            f"{file} was not written by saccade; give a run's folder or its model.safetensors"
        ) from None
    return overlay(ModelConfig(), about["model"], source=str(file)), InputSpec.from_dict(about), weights, file
