"""The pictures that are explained, and those of a set that layers are compared by."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from ..config import DataConfig
from ..data.image import BadSample, decode
from ..loading import LoadedModel
from ..runs import Run
from ..tasks.opening import open_samples

Picture = str | Path | Image.Image | np.ndarray


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
            raise BadSample(str(path), "it is a folder; name the pictures in it, such as FOLDER/*.jpg", "foreign")
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


def read_samples(model: LoadedModel, data: str, count: int) -> list[np.ndarray]:
    """Return pictures of a set, evenly spread over it, to compare layers by.

    Args:
        model: whose own validation pictures "run" stands for.
        data: as for training; "run" for what the model's run was validated on.
        count: how many.
    """
    if data == "run":
        if model.folder is None:
            raise ValueError("data='run' was given and the model is of no run; name the set of pictures")
        config = Run.open(model.folder).config()
        _, opened = open_samples(config.task, config.data)
    else:
        _, opened = open_samples(None, DataConfig(path=data))  # whatever its samples are for, they are pictures
    source = opened.val
    chosen = np.unique(np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(int))
    return [source.read(int(index)) for index in chosen]
