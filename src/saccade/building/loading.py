"""Open trained models, for evaluate, explain, predict, serve and export."""

import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import timm
import torch
from torch import Tensor, nn

from ..data.augment import Normalize
from ..data.spec import InputSpec
from ..models import CheckpointError
from ..runs.metadata import read_about
from ..runs.weights import find_weights
from ..tasks import Task
from ..tasks.hosts import PREFIX as HOSTED
from ..tasks.opening import find_task
from .build import load_model
from .pretrained import PREFIX, find_specification, open_timm

UNFINISHED = " (unfinished)"  # suffix of a name
ALLOWED = "a run directory, its model.safetensors"
Origin = Literal["run", "timm", "hf", "module"]


@dataclass
class LoadedModel:
    """An opened model."""

    model: nn.Module  # in evaluation mode
    spec: InputSpec  # inputs and outputs
    name: str  # name for pages and messages
    origin: Origin = "module"  # "run" (or the weights of one), "timm", "hf" or "module"
    folder: Path | None = None  # folder of its run, if any
    notes: tuple[str, ...] = field(default=())  # notes for the user
    unfinished: bool = False  # whether its training is unfinished, as its name then says

    @property
    def task(self) -> type[Task]:
        """The model's task."""
        return find_task(self.spec.task)

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
        tensor = next(iter((*self.model.parameters(), *self.model.buffers())), None)
        return torch.device("cpu") if tensor is None else tensor.device

    def normalize(self, images: Tensor) -> Tensor:
        """Normalise images, B, C, S, S, bytes or floats from 0 to 1, on the model's device."""
        return Normalize(self.spec.mean, self.spec.std, device=self.device)(images.to(self.device))

    def frame(self, image: np.ndarray) -> Tensor:
        """Frame an image, H, W, C, to uint8 C and the sides of its canvas."""
        return self.spec.framing(image)


def open_model(target: str | Path, *, device: str | None = None) -> LoadedModel:
    """Open a model in evaluation mode: a run, its weights, or a pretrained model by name.

    Args:
        target: run folder, `model.safetensors`, or name of a timm model with pretrained weights, also as `timm:NAME`;
            NAME@FILE, a model with the weights of a file, such as a published checkpoint; or `hf:` and the folder or
            name of a Hugging Face text classifier.
        device: device; default: CPU.
    """
    path = Path(target).expanduser()
    named = find_specification(target)
    if str(target).startswith(HOSTED):
        found = LoadedModel(*load_model(target), Path(str(target).removeprefix(HOSTED)).name, "hf")
    elif named is None:
        model, spec = load_model(target)
        folder = path if path.is_dir() else path.parent
        run = folder if (folder / "config.yaml").is_file() else None
        found = LoadedModel(model, spec, (folder.resolve().name or str(target)), "run", run, tuple(spec.notes))
        if "unfinished" in read_about(find_weights(target)):
            found.name, found.unfinished = f"{found.name}{UNFINISHED}", True
    else:
        found = LoadedModel(*open_timm(named), re.split("[:@]", named)[0], "timm")
    if device is not None:
        found.model = found.model.to(open_device(device))
    return found


def open_device(name: str) -> torch.device:
    """Return a device by name, or raise if it is not available."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # fails on devices without memory, such as `meta`
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={name} is not available ({str(error).splitlines()[0]}); try cpu") from None
    return device


def find_target(target: str | Path, *, allowed: str = ALLOWED) -> str:
    """Return the target for `open_model`: a given path, or timm's full model name.

    Args:
        target: the given target; `vit_tiny` is short for `vit_tiny_patch16_224`, as in training.
        allowed: description of allowed targets besides model names.
    """
    path = Path(target).expanduser()
    if path.is_dir():
        _require_weights(path)
    named = find_specification(target)
    if named is not None:
        # A path with the full name would take precedence.
        return named if find_specification(named) is not None else f"{PREFIX}{named}"
    if path.exists() or str(target).startswith(HOSTED):
        return str(target)
    name = re.split("[:@]", str(target).removeprefix(PREFIX))[0]
    near = difflib.get_close_matches(name, timm.list_models(), n=3)
    hint = f" (close matches: {', '.join(near)})" if near else ""
    raise CheckpointError(
        f"{target} does not exist, and timm has no model of that name{hint}; give {allowed}, the name of a timm "
        "model with pretrained weights, or NAME@FILE"
    )


def _require_weights(folder: Path) -> None:
    """Refuse a folder without weights."""
    if (folder / "comparison.json").is_file() and not (folder / "config.yaml").is_file():
        raise CheckpointError(f"{folder} is a comparison; give one of its runs in {folder / 'runs'}")
    find_weights(folder)
