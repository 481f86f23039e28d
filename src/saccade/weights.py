"""The file of a trained model: its weights, and what is needed to build it and to feed it, as plain data."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from .config import ModelConfig
from .data.spec import InputSpec
from .files import sort_header, whole_file
from .metadata import constructor_options
from .models import CheckpointError
from .models._identify import resolve_name
from .tasks.opening import find_task


def save_model(path: Path, weights: Mapping[str, Tensor], config: ModelConfig, spec: InputSpec) -> None:
    """Write weights with what is needed to build their model and to feed it."""
    own = find_task(spec.task).own_models
    # Others, such as where weights came from, build nothing.
    allowed = {} if own else constructor_options(resolve_name(config.name))
    options = {name: value for name, value in config.options.items() if name in allowed}
    model = {**asdict(config), "options": options, "checkpoint": None, "pretrained": False, "probe": False}
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
    about = json.dumps({"model": model, **spec.to_dict()})
    save_tensors(path, tensors, metadata={"format": "pt", "saccade": about})


def save_tensors(path: Path, tensors: Mapping[str, Tensor], *, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file of a run whole or not at all."""
    with whole_file(path, then=f"resume by saccade train --resume {path.parent}") as draft:
        save_file(dict(tensors), draft, metadata=metadata)
        sort_header(draft)


def find_weights(path: str | Path) -> Path:
    """Return the file of weights that a path names: itself, or the one in a run's folder."""
    file = Path(path).expanduser()
    if not file.is_dir():
        return file
    if not (file / "model.safetensors").exists():
        raise CheckpointError(
            f"{file} holds no model.safetensors; a run gets one at its end: saccade train --resume {file}"
        )
    return file / "model.safetensors"
