"""Facts from which settings are decided, gathered from the samples, the model and the machine."""

import os
from typing import Any

import numpy as np
import torch

from ..building.checkpoint import known_of
from ..data.open import Data
from ..data.source import Stream
from ..models._builder import OPTIONS_ABOVE_SMALL
from ..settings import TrainConfig
from ..settings.facts import Facts, MachineFacts, ModelFacts, SetFacts
from ..support.spawning import cores
from ..tasks.opening import TaskChoice
from .defaults import typical_sides


def gather_facts(
    config: TrainConfig, choice: TaskChoice, data: Data, device: torch.device, *, resumed: bool = False
) -> Facts:
    """Return the facts of a run before its settings are resolved.

    Args:
        config: settings after the task's changes.
        resumed: whether the run is resumed.
    """
    name = choice.kind.hosts.find_model(config.model.name)
    own, cfg = choice.kind.hosts.builds(name), model_cfg(name)
    weights = None if own else known_of(config.model, cfg)
    array = None if isinstance(data.train, Stream) else data.train.array()
    unknown = config.data.mean is None or config.data.std is None
    samples = data.train.length if isinstance(data.train, Stream) else len(data.train)
    sides = None if own else typical_sides(data.train)
    whole = sides is not None and choice.kind.largest is not None
    targets = None if isinstance(data.train, Stream) or config.data.img_size is not None else data.train.targets
    found = SetFacts(
        choice.kind.name,
        samples=min(samples, config.data.train_limit or samples) if samples is not None else None,
        side=None if sides is None else sides[0],
        longer=sides[1] if whole and sides is not None else None,
        longest=getattr(choice.options, "longest", None),
        thinnest=targets.thinnest() if whole and targets is not None else None,
        array=None if array is None else (array.shape[1], 1 if array.shape[3] == 1 else 3),
        measured=measure_scale(array) if array is not None and unknown and weights is None else None,
        largest=choice.kind.largest,
    )
    return Facts(
        data=found,
        model=ModelFacts(
            name,
            requested=config.model.name,
            side=None if choice.kind.reader.reads == "text" else cfg["input_size"][-1],
            mean=list(cfg["mean"]),
            std=list(cfg["std"]),
            above_small=OPTIONS_ABOVE_SMALL.get(name, {}),
            weights=weights,
        ),
        machine=machine_facts(device),
        resumed=resumed,
        filled=is_filled(config),
    )


def machine_facts(device: torch.device) -> MachineFacts:
    """Return the facts of the machine with a device."""
    return MachineFacts(
        gpu=device.type == "cuda",
        cores=cores(),
        processes=int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1,
        kernels=os.environ.get("SACCADE_KERNELS", "").strip(),
    )


def is_filled(config: TrainConfig) -> bool:
    """Whether settings are already resolved, as those of a resumed run."""
    return config.data.mean is not None and config.engine.compile is not None


def measure_scale(array: np.ndarray) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel, from 0 to 1, rounded."""
    sample = array[:: max(len(array) // 10_000, 1)]
    counts = np.stack([np.bincount(sample[..., channel].ravel(), minlength=256) for channel in range(sample.shape[3])])
    share, level = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = share @ level
    std = np.sqrt((share * (level - mean[:, None]) ** 2).sum(1))
    return [round(float(v), 4) for v in mean], [round(max(float(v), 1e-3), 4) for v in std]


def model_cfg(name: str) -> dict[str, Any]:
    """Return timm's data config of a model: image size, channels and normalisation."""
    import timm

    cfg = timm.get_pretrained_cfg(name)
    found = cfg.to_dict() if cfg is not None else {}
    fallback = {"input_size": (3, 224, 224), "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    return fallback | {key: value for key, value in found.items() if value is not None}
