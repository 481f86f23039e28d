"""Files of trained models: weights, and metadata to build the model and its inputs."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from ..data.spec import InputSpec
from ..models import CheckpointError
from ..models._identify import resolve_name
from ..settings import ConfigError, ModelConfig
from ..support.files import sort_header, whole_file
from ..support.wording import count_of
from ..tasks.opening import find_task
from .metadata import KEY, VERSION, check_inputs, check_model

# timm options on the origin of weights, which do not affect the model, and entries of them that would.
SOURCES = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")
BUILDING = ("global_pool", "num_classes", "input_size", "fixed_input_size")
FINAL, LAST, BEST = "model.safetensors", "last.safetensors", "best.safetensors"  # names in a run's folder


def save_model(
    path: Path,
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    spec: InputSpec,
    *,
    unfinished: Mapping[str, int] | None = None,
) -> None:
    """Save weights with metadata, and for unfinished trainings step, epoch and epochs."""
    tensors = {name: value.detach().cpu() for name, value in weights.items()}
    state = {} if unfinished is None else {"unfinished": dict(unfinished)}
    about = json.dumps({**describe(config, spec), **state})
    save_tensors(path, tensors, metadata={"format": "pt", KEY: about})


def describe(config: ModelConfig, spec: InputSpec) -> dict[str, Any]:
    """Return the metadata for a file of weights, or refuse settings that could not be loaded.

    Also called before training, so that a model that cannot be saved is not trained.
    """
    options = {name: value for name, value in config.options.items() if name not in SOURCES}
    model = {**asdict(config), "options": options, "checkpoint": None, "pretrained": False, "probe": False}
    about = {"version": VERSION, "model": model, **spec.to_dict()}
    own = find_task(spec.task).hosts.builds(config.name)
    try:
        _refuse_building(config.options)
        check_inputs(about)
        check_model(model, resolve=None if own else resolve_name)
    except ValueError as error:
        raise ConfigError(
            f"{error}. A weights file must store how to build its model, so training does not start"
        ) from None
    return about


def _refuse_building(options: Mapping[str, Any]) -> None:
    """Refuse options that would not be restored: null, which timm drops, and weight options that affect the model."""
    for name, value in options.items():
        if value is None:
            raise ValueError(
                f"model.options.{name} = null, which timm drops; remove it, or write none if none is one of its values"
            )
        building = sorted(set(BUILDING) & value.keys()) if name in SOURCES and isinstance(value, Mapping) else []
        if building:
            raise ValueError(f"model.options.{name} sets {', '.join(building)}; set these in model.options itself")


def save_tensors(path: Path, tensors: Mapping[str, Tensor], *, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically."""
    with whole_file(path, then=f"resume with saccade train --resume {path.parent}") as draft:
        kept = {name: value.contiguous().clone() for name, value in tensors.items()}  # shared tensors are copied
        save_file(kept, draft, metadata=metadata)
        sort_header(draft)


def find_weights(path: str | Path) -> Path:
    """Return the file of weights for a path: itself, or a run's final weights, else the last ones."""
    file = Path(path).expanduser()
    if not file.is_dir():
        return file
    for name in (FINAL, LAST):
        if (file / name).exists():
            return file / name
    if (file / "config.yaml").is_file():
        raise CheckpointError(
            f"{file} is a run that has not saved any weights yet; resume it with saccade train --resume {file}"
        )
    raise CheckpointError(f"{file} has no {FINAL}, so it is not a run; give a folder that `saccade train` wrote")


def unfinished_note(file: Path, about: Mapping[str, Any]) -> str | None:
    """Return a warning for weights of an unfinished training, else None."""
    at = about.get("unfinished")
    if at is None:
        return None
    known = isinstance(at, dict) and all(type(at.get(name)) is int for name in ("epoch", "epochs", "step"))
    when = f"after {at['epoch']} of {count_of(at['epochs'], 'epoch')} (step {at['step']}), " if known else ""
    return f"the weights in {file} are unfinished: they were saved {when}before the end of the training"
