"""Detectors of Hugging Face behind this task: DETR's successors, which give as many boxes as they have queries."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...config import ConfigError, ModelConfig
from ...data.spec import InputSpec
from ..hosts import build_host, describe_host, read_config
from .boxes import clip, take
from .objects import Objects
from .sparse import in_sides

PREFIX = "hf:"  # before the folder or name of a model, in settings and files
KIND = "OBJECT_DETECTION"
KEPT = 100


def hosted_name(name: str) -> str | None:
    """Return how settings name a model of Hugging Face, given its folder or `hf:` and its name; None for others."""
    if name.startswith(PREFIX):
        return name
    return f"{PREFIX}{name}" if (Path(name).expanduser() / "config.json").is_file() else None


def is_hosted(name: str) -> bool:
    """Tell whether settings name a model of Hugging Face."""
    return name.startswith(PREFIX)


def describe(spec: InputSpec, config: ModelConfig) -> None:
    """Keep in a spec what builds a model again."""
    spec.extra["host"] = describe_host(config.name.removeprefix(PREFIX), spec.outputs, kind=KIND)


def has_weights(name: str) -> bool:
    """Tell whether there are weights to begin with: a folder may hold a configuration alone."""
    folder = Path(name.removeprefix(PREFIX)).expanduser()
    return not folder.is_dir() or any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))


def normalisation(name: str) -> tuple[list[float], list[float]] | None:
    """Return mean and deviation that a folder's `preprocessor_config.json` tells; None where it tells none."""
    file = Path(name.removeprefix(PREFIX)).expanduser() / "preprocessor_config.json"
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(told, Mapping):
        return None
    if told.get("do_normalize") is False:
        return [0.0] * 3, [1.0] * 3
    values = [told.get(key) for key in ("image_mean", "image_std")]
    if all(isinstance(one, list) and len(one) == 3 and all(isinstance(v, int | float) for v in one) for one in values):
        mean, std = ([float(value) for value in one] for one in values if one is not None)
        return mean, std
    return None


def check(spec: InputSpec) -> None:
    """Refuse, by ValueError, a spec whose detector cannot be built."""
    if "host" in spec.extra:
        read_config(spec, kind=KIND)


def build(config: ModelConfig, spec: InputSpec) -> "HostedDetector":
    """Build a model from a spec; in training, with the weights that settings name, if there are some."""
    if "host" not in spec.extra:
        raise ConfigError(f"model.name = {config.name!r} was given; its configuration is not in the spec")
    weights = config.name.removeprefix(PREFIX) if config.pretrained else None
    return HostedDetector(build_host(spec, kind=KIND, weights=weights), len(spec.outputs))


class HostedDetector(nn.Module):
    """A model of transformers that answers like this package's detectors.

    Args:
        model: of one of the kinds that score every class by itself.
        num_classes: that objects are told apart into.
    """

    overlap = 1.0
    no_graph = "it is a model of transformers; use the run itself, or a head of this package's: atss, retinanet"

    def __init__(self, model: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.host, self.num_classes = model, num_classes
        self.pretrained_cfg: dict[str, Any] = {}
        self.default_cfg: dict[str, Any] = {}

    def losses(self, x: Tensor, objects: Objects, seeds: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the model's own loss.

        Args:
            x: images, B, C, H, W.
            objects: what is in them.
            seeds: not needed: what the model draws by lot is torch's, seeded in every step.
        """
        boxes = in_sides(objects.boxes, (x.shape[-2], x.shape[-1]))
        middle, sides = (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]
        placed = torch.cat([middle, sides], dim=-1)
        labels = [
            {"class_labels": objects.labels[number][real], "boxes": placed[number][real]}
            for number, real in enumerate(objects.real)
        ]
        return {"host": self.host(pixel_values=x, labels=labels).loss}

    def forward(self, x: Tensor) -> Tensor:
        """Return the surest answers, B, K, 6: box, score and class."""
        said = self.host(pixel_values=x)
        logits, placed = said.logits.float(), said.pred_boxes.float()
        size = (x.shape[-2], x.shape[-1])
        scores = logits[..., : self.num_classes].sigmoid().flatten(1)
        value, place = scores.topk(min(KEPT, scores.shape[1]), dim=1)
        middle, half = placed[..., :2], placed[..., 2:] / 2
        boxes = in_sides(torch.cat([middle - half, middle + half], dim=-1), (1 / size[0], 1 / size[1]))
        box = take(clip(boxes, size), place // self.num_classes)
        return torch.cat([box, value[..., None], (place % self.num_classes)[..., None].to(box.dtype)], dim=-1)
