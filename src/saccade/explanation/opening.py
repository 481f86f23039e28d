"""Open the model to explain, its input specification, and the images."""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from torch import Tensor, nn

from ..building.loading import LoadedModel, find_target, open_device, open_model
from ..data.image import EXTENSIONS, BadSample, decode
from ..data.spec import InputSpec
from ..runs.metadata import read_about
from ..runs.run import Run
from ..runs.weights import find_weights
from ..settings import DataConfig
from ..tasks.hosts import PREFIX as HOSTED
from ..tasks.opening import find_task, open_samples
from ..tasks.text.tokens import Reading, open_tokenizer

DETECTING = ("rpn", "roi_heads", "anchor_generator")  # attributes of torchvision's detectors
INNER = ("backbone", "encoder")
ASSUMED = (
    "The model's configuration does not specify how images are normalised; a mean and standard deviation of 0.5 were "
    "assumed. If its image processor uses others, pass them with shape=saccade.InputSpec(..., mean=, std=)."
)
MAX_IMAGES = 16  # most images of a folder
DETECTED = 320  # image size for a detector's backbone, which takes any


def open_target(
    target: nn.Module | str | Path, *, spec: InputSpec | None = None, device: str | None = None
) -> LoadedModel:
    """Open the model to explain.

    Args:
        target: run folder, weights, timm model name, NAME@FILE, or a module.
        spec: input specification of a module; default: from its configuration.
        device: device to run on; default: the module's, or the CPU.
    """
    if not isinstance(target, nn.Module):
        found = open_model(find_target(target), device=device)
        if found.folder is None and Path(target).expanduser().is_dir():
            found.folder = Path(target).expanduser()  # weights without settings
        found.spec = found.spec.in_square()  # views stack images of one shape
        return found
    model, notes = _without_detection(target)
    if spec is None and hasattr(getattr(target, "config", None), "image_size"):
        notes = (*notes, ASSUMED)
    spec = spec or find_spec(target)
    name = (getattr(target, "pretrained_cfg", None) or {}).get("architecture") or type(target).__name__
    if device is not None:
        model = model.to(open_device(device))
    return LoadedModel(model, spec, name, "module", notes=notes)


def _without_detection(model: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """Return a detector's backbone; other models are returned unchanged."""
    if any(hasattr(model, name) for name in DETECTING):
        for name in INNER:
            inner = getattr(model, name, None)
            if isinstance(inner, nn.Module):
                return inner, (f"The views show the {name} of {type(model).__name__}, which detects boxes.",)
    return model, ()


def find_spec(model: nn.Module) -> InputSpec:
    """Return a model's input specification, from its timm or Hugging Face configuration."""
    classes = getattr(model, "num_classes", 0) or 0
    config: Any = getattr(model, "config", None)
    if hasattr(config, "image_size"):
        size = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
        labels = getattr(config, "id2label", None) or {}
        names = tuple(str(labels.get(i, f"class {i}")) for i in range(len(labels)))
        channels = getattr(config, "num_channels", 3)
        return InputSpec(names, channels, size, mean=[0.5] * channels, std=[0.5] * channels)
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
        return InputSpec(names, channels, size, mean=mean, std=std, shorter=round(size / (cfg.get("crop_pct") or 1)))
    transform: Any = getattr(model, "transform", None)
    if hasattr(transform, "image_mean") and hasattr(transform, "image_std"):  # a detector of torchvision
        mean, std = list(transform.image_mean), list(transform.image_std)
        return InputSpec((), len(mean), DETECTED, mean=mean, std=std)
    raise ValueError(
        f"{type(model).__name__} does not specify its preprocessing of images; pass "
        "shape=saccade.InputSpec(outputs=, in_chans=, img_size=, mean=, std=)"
    )


def _channels(model: nn.Module, default: int) -> int:
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    return default if first is None or first.in_channels not in (1, 3) else first.in_channels


ImageLike = str | Path | PIL.Image.Image | np.ndarray


def read_images(images: ImageLike | Sequence[ImageLike]) -> list[tuple[str, np.ndarray]]:
    """Read images with names: files, folders, PIL images, or uint8 arrays H, W, 3 or H, W."""
    single = isinstance(images, str | Path | PIL.Image.Image | np.ndarray)
    if not single and not isinstance(images, Iterable):
        raise TypeError(f"images are {type(images).__name__}; give files, PIL images or uint8 arrays")
    listed: list[Any] = [images] if single else list(images)  # type: ignore[arg-type]
    if not listed:
        raise ValueError("no image given; give at least one")
    found: list[tuple[str, np.ndarray]] = []
    for image in listed:
        if isinstance(image, str | Path) and Path(image).expanduser().is_dir():
            found += _read_folder(Path(image).expanduser())
        else:
            found.append(_read(image, len(found) + 1))
    return found


def _read_folder(folder: Path) -> list[tuple[str, np.ndarray]]:
    """Read images of a folder and its subfolders, at most MAX_IMAGES; warn of bad ones."""
    found_here = (path for path in folder.rglob("*.*") if path.suffix.lower() in EXTENSIONS and path.is_file())
    files = sorted(path for path in found_here if not any(p.startswith(".") for p in path.relative_to(folder).parts))
    spread = np.linspace(0, max(len(files) - 1, 0), min(len(files), MAX_IMAGES))
    places = np.unique(spread.round().astype(int)).tolist()
    if len(files) > MAX_IMAGES:
        warnings.warn(
            f"{folder} has {len(files)} images; {MAX_IMAGES} of them, evenly spaced, are explained", stacklevel=2
        )
    found = []
    for place in places:
        name = files[place].relative_to(folder).as_posix()
        try:
            found.append((name, decode(files[place], name=name)))
        except BadSample as bad:
            warnings.warn(f"left out: {bad}", stacklevel=2)
    if not found:
        raise BadSample(str(folder), "it is a directory without readable images", "foreign")
    return found


def _read(image: ImageLike, number: int) -> tuple[str, np.ndarray]:
    if isinstance(image, str | Path):
        path = Path(image).expanduser()
        return path.name, decode(path, name=str(path))
    if isinstance(image, PIL.Image.Image):
        return f"image {number}", np.asarray(image.convert("RGB"))
    if isinstance(image, np.ndarray):
        if image.dtype == np.uint8 and image.ndim == 2:
            image = image[..., None]
        if image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] in (1, 3) and image.size:
            return f"image {number}", image
        raise ValueError(
            f"image {number} is an array of type {image.dtype} and shape {image.shape}; give uint8, H, W, 3 or H, W"
        )
    raise TypeError(f"image {number} is {type(image).__name__}; give a file, a PIL image or a uint8 array")


def to_pixels(framed: Tensor) -> np.ndarray:
    """Return a framed image, uint8 C, S, S, for display, S, S, 3; the first channel in grey unless there are three."""
    shown = framed if framed.shape[0] == 3 else framed[:1].expand(3, -1, -1)
    return shown.permute(1, 2, 0).contiguous().cpu().numpy()


def read_samples(model: LoadedModel, data: str, count: int) -> list[np.ndarray]:
    """Return evenly spaced images of a dataset for CKA.

    Args:
        model: the model, whose validation images are used for "run".
        data: dataset as for training, or "run".
    """
    if data == "run":
        if model.folder is None:
            raise ValueError("data='run': the model does not belong to a run; give a dataset")
        config = Run.open(model.folder).config()
        _, opened = open_samples(config.task, config.data)
    else:
        _, opened = open_samples(None, DataConfig(path=data))  # the task does not matter
    source = opened.val
    chosen = np.unique(np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(int))
    return [source.read(int(index)) for index in chosen]


def open_text_run(target: Any, *, device: str | None) -> LoadedModel | None:
    """Open a run of texts or questions, or a Hugging Face model; None for other targets."""
    if isinstance(target, str) and target.startswith(HOSTED):
        return open_model(target, device=device)
    try:
        file = find_weights(target)
        about = read_about(file) if file.is_file() else {}
        if find_task(str(about.get("task", "classify"))).reader.reads == "image":
            return None
    except ValueError:  # open or refuse it as an image model
        return None
    return open_model(target, device=device)


class SpecTokenizer:
    """A run's tokenizer with the interface of Hugging Face's."""

    def __init__(self, spec: InputSpec) -> None:
        self.spec, self.kind = spec, find_task(spec.task)
        self.made = open_tokenizer(Reading.of(spec).tokenizer)
        known = self.made.get_added_tokens_decoder()
        self.all_special_ids = [number for number, token in known.items() if token.special]

    def __call__(self, text: str, *, return_tensors: str = "pt") -> dict[str, Tensor]:  # noqa: ARG002
        """Tokenize a text, or two texts separated by a tab."""
        kind: Any = self.kind
        texts = tuple(text.split("\t", 1)) if Reading.of(self.spec).pair else (text,)
        codec = kind.codec(self.spec)
        return codec.unpack(codec.pack_text(texts, name="the text")[None])

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return tokens as in the vocabulary."""
        return [self.made.id_to_token(number) or "" for number in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Return tokens as text, including special ones."""
        return self.made.decode(list(ids), skip_special_tokens=False)
