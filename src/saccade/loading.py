"""A trained model, opened once for all that ask it: evaluate, explain, predict, serve and export."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import timm
import torch
from torch import Tensor, nn

from .building import load_model
from .data.augment import Normalize
from .data.spec import InputSpec
from .models import CheckpointError
from .tasks import Task
from .tasks.opening import find_task

Origin = Literal["run", "timm", "module"]


@dataclass
class LoadedModel:
    """A model to be asked.

    Args:
        model: in evaluation mode.
        spec: what goes in and comes out.
        name: what to call it.
        origin: "run" (or the weights of one), "timm" or "module".
        folder: of the run it is from; None where it is of no run.
        notes: what the reader should know.
    """

    model: nn.Module
    spec: InputSpec
    name: str
    origin: Origin = "module"
    folder: Path | None = None
    notes: tuple[str, ...] = field(default=())

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

    def frame(self, picture: np.ndarray) -> Tensor:
        """Make an image, H, W, C, square: uint8 C, S, S."""
        return self.spec.framing(picture)


def open_model(target: str | Path, *, device: str | None = None) -> LoadedModel:
    """Open a model to be asked, in evaluation mode: a run, the weights one wrote, or timm's by name with its weights.

    Args:
        target: a run's folder, its `model.safetensors`, or a name timm has pretrained weights for.
        device: where to; the CPU if not given.
    """
    path = Path(target).expanduser()
    if path.exists() or not timm.is_model(str(target).split(".")[0]):
        model, spec = load_model(target)
        folder = path if path.is_dir() else path.parent
        run = folder if (folder / "config.yaml").is_file() else None
        found = LoadedModel(model, spec, (folder.resolve().name or str(target)), "run", run)
    else:
        found = _open_timm(str(target))
    if device is not None:
        found.model = found.model.to(open_device(device))
    return found


def _open_timm(name: str) -> LoadedModel:
    try:
        model: Any = timm.create_model(name, pretrained=True)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"timm's weights of {name} could not be had ({type(error).__name__}: {str(error)[:200]}); give a run's "
            "folder, or go online once so that they are kept"
        ) from None
    data = timm.data.resolve_model_data_config(model)
    size = data["input_size"][-1]
    spec = InputSpec(
        outputs=_class_names(name, model.num_classes),
        in_chans=data["input_size"][0],
        img_size=size,
        mean=list(data["mean"]),
        std=list(data["std"]),
        shorter=round(size / data["crop_pct"]),
    )
    return LoadedModel(model.eval(), spec, name, "timm")


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


def _class_names(name: str, count: int) -> tuple[str, ...]:
    """Return ImageNet's names where they are what the logits mean, else numbers."""
    subset = timm.data.infer_imagenet_subset(timm.get_pretrained_cfg(name))
    if subset is not None:
        info = timm.data.ImageNetInfo(subset)
        if info.num_classes() == count:
            return tuple(info.index_to_description(index) for index in range(count))
    return tuple(f"class {index}" for index in range(count))
