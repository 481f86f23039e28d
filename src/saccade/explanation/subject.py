"""What is explained: a model, how it wants its pictures, and the pictures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ..building import Shape, open_device, open_model
from ..data.augment import Normalize
from ..data.open import open_configured, open_data
from ..data.picture import BadPicture, decode
from ..runs import Run
from ..targets import find_target

Picture = str | Path | Image.Image | np.ndarray
DETECTING = ("rpn", "roi_heads", "anchor_generator")  # parts of detectors, which resize pictures and return boxes
INNER = ("backbone", "encoder")
ASSUMED = (
    "The model's configuration does not say how its pictures are normalised; a mean and a deviation of 0.5 were "
    "assumed. If its image processor has others, pass them by shape=saccade.building.Shape(..., mean=, std=)."
)
DETECTED = 320  # side of a picture for the backbone of a detector, which takes any


@dataclass
class Subject:
    """A model to explain.

    Args:
        model: what is run.
        shape: how it wants its pictures.
        name: what to call it.
        run: the folder of its run; None where it is of no run.
        notes: what the reader should know.
    """

    model: nn.Module
    shape: Shape
    name: str
    run: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def device(self) -> torch.device:
        """Where the model's weights are."""
        tensor = next(iter((*self.model.parameters(), *self.model.buffers())), None)
        return torch.device("cpu") if tensor is None else tensor.device

    def frame(self, picture: np.ndarray) -> Tensor:
        """Make a picture square, uint8 C, S, S."""
        return self.shape.framing(picture)

    def normalise(self, framed: Tensor) -> Tensor:
        """Bring framed pictures, uint8 B, C, S, S, to what the model takes, on its device."""
        return Normalize(self.shape.mean, self.shape.std, device=self.device)(framed.to(self.device))


def open_subject(target: nn.Module | str | Path, *, shape: Shape | None = None, device: str | None = None) -> Subject:
    """Open what is to be explained.

    Args:
        target: a run's folder, its weights, a timm model by its name, or a module.
        shape: how a module wants its pictures; what its configuration says if not given.
        device: where to run it; where a module is, or the CPU, if not given.
    """
    run = None
    if isinstance(target, nn.Module):
        model, notes = _without_detection(target)
        if shape is None and hasattr(getattr(target, "config", None), "image_size"):
            notes = (*notes, ASSUMED)
        shape = shape or find_shape(target)
        name = (getattr(target, "pretrained_cfg", None) or {}).get("architecture") or type(target).__name__
    else:
        opened, path = find_target(target), Path(target).expanduser()
        model, shape, notes = *open_model(opened), ()
        name = path.resolve().name if path.exists() else opened
        run = path if path.is_dir() else None
    if device is not None:
        model = model.to(open_device(device))
    return Subject(model, shape, name, run, notes)


def _without_detection(model: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the part of a detector that reads pictures as they are; any other model as it is."""
    if any(hasattr(model, name) for name in DETECTING):
        for name in INNER:
            inner = getattr(model, name, None)
            if isinstance(inner, nn.Module):
                return inner, (f"The views are of the {name} of {type(model).__name__}, which finds boxes.",)
    return model, ()


def find_shape(model: nn.Module) -> Shape:
    """Return how a model wants its pictures, from what timm or Hugging Face wrote into it."""
    classes = getattr(model, "num_classes", 0) or 0
    config: Any = getattr(model, "config", None)
    if hasattr(config, "image_size"):
        size = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
        labels = getattr(config, "id2label", None) or {}
        names = tuple(str(labels.get(i, f"class {i}")) for i in range(len(labels)))
        channels = getattr(config, "num_channels", 3)
        return Shape(names, channels, size, mean=[0.5] * channels, std=[0.5] * channels)
    for module in model.modules():
        cfg = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
        if not isinstance(cfg, dict) or not cfg.get("input_size"):
            continue
        embed: Any = getattr(module, "patch_embed", None)
        size = getattr(embed, "img_size", None) or getattr(module, "img_size", None) or cfg["input_size"][-1]
        size = size if isinstance(size, int) else size[0]
        channels = _channels(model, cfg["input_size"][0])
        mean, std = (list(cfg.get(key) or (0.5,) * 3) for key in ("mean", "std"))
        if len(mean) != channels:
            mean, std = [sum(mean) / len(mean)] * channels, [sum(std) / len(std)] * channels
        names = tuple(f"class {index}" for index in range(classes))
        return Shape(names, channels, size, mean=mean, std=std, shorter=round(size / (cfg.get("crop_pct") or 1)))
    transform: Any = getattr(model, "transform", None)
    if hasattr(transform, "image_mean") and hasattr(transform, "image_std"):  # a detector of torchvision
        mean, std = list(transform.image_mean), list(transform.image_std)
        return Shape((), len(mean), DETECTED, mean=mean, std=std)
    raise ValueError(
        f"{type(model).__name__} does not say how it wants its pictures; pass shape=saccade.building.Shape(classes=, "
        "in_chans=, img_size=, mean=, std=)"
    )


def _channels(model: nn.Module, told: int) -> int:
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    return told if first is None or first.in_channels not in (1, 3) else first.in_channels


def read_pictures(pictures: Picture | Sequence[Picture]) -> list[tuple[str, np.ndarray]]:
    """Read pictures, each with a name: files, PIL images, or arrays H, W, 3 or H, W of uint8."""
    single = isinstance(pictures, str | Path | Image.Image | np.ndarray)
    if not single and not isinstance(pictures, Iterable):
        raise TypeError(f"pictures are {type(pictures).__name__}; give files, PIL images or arrays of uint8")
    listed: list[Any] = [pictures] if single else list(pictures)  # type: ignore[arg-type]
    if not listed:
        raise ValueError("no picture was given; give at least one")
    return [_read(picture, number + 1) for number, picture in enumerate(listed)]


def _read(picture: Picture, number: int) -> tuple[str, np.ndarray]:
    if isinstance(picture, str | Path):
        path = Path(picture).expanduser()
        if path.is_dir():
            raise BadPicture(str(path), "it is a folder; name the pictures in it, such as FOLDER/*.jpg", "foreign")
        return path.name, decode(path, name=str(path))
    if isinstance(picture, Image.Image):
        return f"picture {number}", np.asarray(picture.convert("RGB"))
    if isinstance(picture, np.ndarray):
        if picture.dtype == np.uint8 and picture.ndim == 2:
            picture = picture[..., None]
        if picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] in (1, 3) and picture.size:
            return f"picture {number}", picture
        raise ValueError(
            f"picture {number} is an array of type {picture.dtype} and shape {picture.shape}; give uint8, H, W, 3 or "
            "H, W"
        )
    raise TypeError(f"picture {number} is {type(picture).__name__}; give a file, a PIL image or an array of uint8")


def to_pixels(framed: Tensor) -> np.ndarray:
    """Return a framed picture, uint8 C, S, S, as it is shown, S, S, 3; of other channels than 3 the first, in grey."""
    shown = framed if framed.shape[0] == 3 else framed[:1].expand(3, -1, -1)
    return shown.permute(1, 2, 0).contiguous().cpu().numpy()


def read_samples(subject: Subject, data: str, count: int) -> list[np.ndarray]:
    """Return pictures of a set, evenly spread over it, to compare layers by.

    Args:
        subject: whose own validation pictures "run" stands for.
        data: as for training; "run" for what the model's run was validated on.
        count: how many.
    """
    if data == "run":
        if subject.run is None:
            raise ValueError("data='run' was given and the model is of no run; name the set of pictures")
        source = open_configured(Run.open(subject.run).config().data).val
    else:
        source = open_data(data).val
    chosen = np.unique(np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(int))
    return [source.read(int(index)) for index in chosen]
