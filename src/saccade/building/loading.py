"""A trained model, opened once for all that ask it: evaluate, explain, predict, serve and export."""

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
from ..tasks.hosting import PREFIX as HOSTED
from ..tasks.opening import find_task
from .build import load_model
from .pretrained import PREFIX, find_specification, open_timm

UNFINISHED = " (unfinished)"  # at the end of a name
ALLOWED = "a run's folder, its model.safetensors"
Origin = Literal["run", "timm", "hf", "module"]


@dataclass
class LoadedModel:
    """A model to be asked."""

    model: nn.Module  # in evaluation mode
    spec: InputSpec  # what goes in and comes out
    name: str  # what to call it
    origin: Origin = "module"  # "run" (or the weights of one), "timm", "hf" or "module"
    folder: Path | None = None  # of the run it is from; None where it is of no run
    notes: tuple[str, ...] = field(default=())  # what the reader should know
    unfinished: bool = False  # its training has not come to its end; its name says so, on pages and in answers

    @property
    def task(self) -> type[Task]:
        """What it answers."""
        return find_task(self.spec.task)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        tensor = next(iter((*self.model.parameters(), *self.model.buffers())), None)
        return torch.device("cpu") if tensor is None else tensor.device

    def normalize(self, images: Tensor) -> Tensor:
        """Bring images, B, C, S, S, bytes or numbers from 0 to 1, to what the model takes, on its device."""
        return Normalize(self.spec.mean, self.spec.std, device=self.device)(images.to(self.device))

    def frame(self, image: np.ndarray) -> Tensor:
        """Make an image, H, W, C, square: uint8 C, S, S."""
        return self.spec.framing(image)


def open_model(target: str | Path, *, device: str | None = None) -> LoadedModel:
    """Open a model to be asked, in evaluation mode: a run, the weights one wrote, or one by its name with weights.

    Args:
        target: a run's folder, its `model.safetensors`, or a name timm has pretrained weights for, also as `timm:NAME`;
            NAME@FILE, a model with the weights of a file, such as a published checkpoint of one of ours; or `hf:` and a
            text classifier's folder or name on Hugging Face.
        device: where to; the CPU if not given.
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
    """Return a device by its name, if it can be used here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a device without memory, such as `meta`, has no number to give
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device={name} was given and cannot be used ({str(error).splitlines()[0]}); try cpu"
        ) from None
    return device


def find_target(target: str | Path, *, allowed: str = ALLOWED) -> str:
    """Return what `open_model` can open: a path as it was given, or timm's full name for a short one.

    Args:
        target: what was given; `vit_tiny` stands for `vit_tiny_patch16_224`, as in training.
        allowed: what may be given besides a model by its name, in words.
    """
    path = Path(target).expanduser()
    if path.is_dir():
        _require_weights(path)
    named = find_specification(target)
    if named is not None:
        # A path may have the full name, and would go before it.
        return named if find_specification(named) is not None else f"{PREFIX}{named}"
    if path.exists() or str(target).startswith(HOSTED):
        return str(target)
    name = re.split("[:@]", str(target).removeprefix(PREFIX))[0]
    near = difflib.get_close_matches(name, timm.list_models(), n=3)
    hint = f" (the nearest are {', '.join(near)})" if near else ""
    raise CheckpointError(
        f"there is no {target}, and timm has no model of that name{hint}; give {allowed}, or the name of a timm "
        "model with pretrained weights, or NAME@FILE"
    )


def _require_weights(folder: Path) -> None:
    """Refuse a folder without weights, and say what it is."""
    if (folder / "comparison.json").is_file() and not (folder / "config.yaml").is_file():
        raise CheckpointError(f"{folder} is a comparison; give one of its runs, in {folder / 'runs'}")
    find_weights(folder)
