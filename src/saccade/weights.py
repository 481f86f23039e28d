"""The file of a trained model: its weights, and what is needed to build it and to feed it, as plain data."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from .config import ModelConfig
from .data.spec import InputSpec
from .files import sort_header, whole_file
from .metadata import constructor_options
from .models import CheckpointError
from .models._identify import resolve_name
from .tasks.opening import find_task
from .wording import count_of

FINAL, LAST, BEST = "model.safetensors", "last.safetensors", "best.safetensors"  # in a run's folder


def save_model(
    path: Path,
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    spec: InputSpec,
    *,
    unfinished: Mapping[str, int] | None = None,
) -> None:
    """Write weights with what builds and feeds their model, and of unfinished training step, epoch and epochs."""
    own = find_task(spec.task).builds(config.name)
    # Others, such as where weights came from, build nothing.
    allowed = {} if own else constructor_options(resolve_name(config.name))
    options = {name: value for name, value in config.options.items() if name in allowed}
    model = {**asdict(config), "options": options, "checkpoint": None, "pretrained": False, "probe": False}
    tensors = {name: value.detach().cpu() for name, value in weights.items()}
    state = {} if unfinished is None else {"unfinished": dict(unfinished)}
    about = json.dumps({"model": model, **spec.to_dict(), **state})
    save_tensors(path, tensors, metadata={"format": "pt", "saccade": about})


def save_tensors(path: Path, tensors: Mapping[str, Tensor], *, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file of a run whole or not at all."""
    with whole_file(path, then=f"resume by saccade train --resume {path.parent}") as draft:
        kept = {name: value.contiguous().clone() for name, value in tensors.items()}  # two names of one are two
        save_file(kept, draft, metadata=metadata)
        sort_header(draft)


def find_weights(path: str | Path) -> Path:
    """Return the file of weights that a path names: itself, or in a run's folder the final ones, else the last."""
    file = Path(path).expanduser()
    if not file.is_dir():
        return file
    for name in (FINAL, LAST):
        if (file / name).exists():
            return file / name
    if (file / "config.yaml").is_file():
        raise CheckpointError(
            f"{file} is a run that has written no weights yet; resume it by saccade train --resume {file}"
        )
    raise CheckpointError(f"{file} holds no {FINAL}, so it is no run; give a folder `saccade train` wrote")


def unfinished_note(file: Path, about: Mapping[str, Any]) -> str | None:
    """Return a sentence on weights that were written before their training came to its end; None of others."""
    at = about.get("unfinished")
    if at is None:
        return None
    known = isinstance(at, dict) and all(type(at.get(name)) is int for name in ("epoch", "epochs", "step"))
    when = f"after {at['epoch']} of {count_of(at['epochs'], 'epoch')} (step {at['step']}), " if known else ""
    return f"the weights in {file} are unfinished: they were written {when}before the training came to its end"
