"""The model that is explained, and how it wants its pictures."""

from pathlib import Path
from typing import Any

from torch import nn

from ..data.spec import InputSpec
from ..loading import LoadedModel, find_target, open_device, open_model

DETECTING = ("rpn", "roi_heads", "anchor_generator")  # parts of detectors, which resize pictures and return boxes
INNER = ("backbone", "encoder")
ASSUMED = (
    "The model's configuration does not say how its pictures are normalised; a mean and a deviation of 0.5 were "
    "assumed. If its image processor has others, pass them by shape=saccade.InputSpec(..., mean=, std=)."
)
DETECTED = 320  # side of a picture for the backbone of a detector, which takes any


def open_target(
    target: nn.Module | str | Path, *, spec: InputSpec | None = None, device: str | None = None
) -> LoadedModel:
    """Open what is to be explained.

    Args:
        target: a run's folder, its weights, a timm model by its name, or a module.
        spec: how a module wants its pictures; what its configuration says if not given.
        device: where to run it; where a module is, or the CPU, if not given.
    """
    if not isinstance(target, nn.Module):
        found = open_model(find_target(target), device=device)
        if found.folder is None and Path(target).expanduser().is_dir():
            found.folder = Path(target).expanduser()  # of weights without settings
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
    """Return the part of a detector that reads pictures as they are; any other model as it is."""
    if any(hasattr(model, name) for name in DETECTING):
        for name in INNER:
            inner = getattr(model, name, None)
            if isinstance(inner, nn.Module):
                return inner, (f"The views are of the {name} of {type(model).__name__}, which finds boxes.",)
    return model, ()


def find_spec(model: nn.Module) -> InputSpec:
    """Return how a model wants its pictures, from what timm or Hugging Face wrote into it."""
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
        f"{type(model).__name__} does not say how it wants its pictures; pass shape=saccade.InputSpec(outputs=, "
        "in_chans=, img_size=, mean=, std=)"
    )


def _channels(model: nn.Module, told: int) -> int:
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    return told if first is None or first.in_channels not in (1, 3) else first.in_channels
