"""Everything a run is made of, from its settings."""

import math
import multiprocessing
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..building import Shape, build_model, build_task, resolve_name
from ..config import ConfigError, TrainConfig, overlay
from ..data.augment import Augment, Normalize
from ..data.feed import Feed, ResidentFeed
from ..data.kept import LIMIT, Kept, KeptFeed, decoded_bytes, framed_bytes, kept_note
from ..data.loader import FileFeed, Framing, StreamFeed
from ..data.open import Data
from ..data.order import Order, part
from ..data.source import Source, Stream
from ..data.validation import Validation
from ..tasks import Task
from .defaults import batch_for, notes_on, options_for, side_for, typical_side
from .identity import identity_of
from .parallel import World
from .quicken import quicken

RESIDENT_SHARE = 0.4  # of the device's free memory a set may take


@dataclass
class Parts:
    """What a loop works with."""

    data: Data
    shape: Shape
    feed: Feed
    validation: Validation
    normalize: Normalize
    task: Task
    identity: dict[str, Any]  # of the pictures


def resolve(config: TrainConfig, data: Data, device: torch.device) -> tuple[TrainConfig, Shape]:
    """Fill in what the settings leave to the data and the device."""
    array = None if isinstance(data.train, Stream) else data.train.array()
    name = resolve_name(config.model.name)
    model_cfg = _model_cfg(name)
    side = typical_side(data.train) if config.data.img_size is None else None
    size = config.data.img_size or (
        array.shape[1] if array is not None else side_for(side, model_cfg["input_size"][-1])
    )
    grey = array is not None and array.shape[3] == 1 and not config.model.pretrained
    channels = 1 if grey else 3
    mean, std = config.data.mean, config.data.std
    if mean is None or std is None:
        measured = _statistics(array) if array is not None and not config.model.pretrained else None
        mean, std = measured or (list(model_cfg["mean"]), list(model_cfg["std"]))
    if not len(mean) == len(std) == channels:
        raise ConfigError(f"data.mean and data.std have {len(mean)} and {len(std)} numbers for {channels} channels")
    gpu = device.type == "cuda"
    precision = config.engine.precision
    pictures = data.train.length if isinstance(data.train, Stream) else len(data.train)
    pictures = min(pictures, config.data.train_limit or pictures) if pictures is not None else None
    batch, rate = batch_for(config, pictures)
    resolved = overlay(
        config,
        {
            "data": {"img_size": size, "mean": mean, "std": std, "workers": _workers(config, data)},
            "model": {"name": name, "options": options_for(name, config.model.options, size)},
            "optim": {"batch_size": batch, "lr": rate, "least_steps": None},
            "engine.precision": ("bfloat16" if gpu else "float32") if precision == "auto" else precision,
            "engine.compile": gpu if config.engine.compile is None else config.engine.compile,
        },
    )
    shape = Shape(classes=data.classes, in_chans=channels, img_size=size, mean=mean, std=std)
    shape.shorter = size if array is not None else _shorter(resolved, shape)  # arrays are taken whole
    shape.notes += notes_on(config, resolved, side=side, pictures=pictures)
    return resolved, shape


def assemble(config: TrainConfig, data: Data, shape: Shape, *, world: World, device: torch.device) -> Parts:
    """Build the feed, the validation pictures and the task of resolved settings."""
    train = limit_pictures(data.train, config.data.train_limit)
    counts = None if isinstance(train, Stream) else torch.from_numpy(train.counts())
    model: Any = build_model(config.model, shape, seed=config.seed)
    if config.engine.grad_checkpointing:
        if not hasattr(model, "set_grad_checkpointing"):
            raise ConfigError(f"engine.grad_checkpointing was asked for and {config.model.name} does not offer it")
        model.set_grad_checkpointing(True)
    if device.type == "cpu":
        quicken(model)
    task = build_task(model, config.model, config.loss, shape, seed=config.seed, counts=counts)
    task = task.to(device)
    if config.engine.channels_last and device.type == "cuda":
        task = task.to(memory_format=torch.channels_last)
    augment = Augment(
        config.augment,
        mean=shape.mean,
        std=shape.std,
        num_classes=len(shape.classes),
        img_size=shape.img_size,
        smoothing=config.loss.smoothing,
        device=device,
    )
    framing = shape.framing
    validation = Validation(
        data.val,
        framing=framing,
        batch_size=_validation_batch(config, device),
        device=device,
        workers=config.data.workers or 0,
        keep=framed_bytes(len(data.val), framing) <= _kept_limit(config, world),
        rank=world.rank,
        world=world.size,
    )
    feed = _feed(train, config, augment, framing, world=world, device=device)
    identity = identity_of(train, data.val, steps=feed.steps)
    return Parts(data, shape, feed, validation, augment.normalize, task, identity)


def _feed(
    train: Source | Stream,
    config: TrainConfig,
    augment: Augment,
    framing: Framing,
    *,
    world: World,
    device: torch.device,
) -> Feed:
    shared: dict[str, Any] = {"augment": augment, "rank": world.rank, "world": world.size}
    cropping = replace(framing, config=config.augment)
    reading: dict[str, Any] = {
        "framing": cropping,
        "device": device,
        "workers": config.data.workers or 0,
    }
    batch_size = config.optim.batch_size
    if isinstance(train, Stream):
        length = len(train.indexed()) if train.length is None else train.length
        mine = part(batch_size, world.rank, world.size)
        return StreamFeed(
            train.decoded(at_least=cropping.least),
            steps=max(length // batch_size, 1),
            batch_size=mine.stop - mine.start,
            seed=config.seed,
            bad_limit=config.data.bad_limit,
            **reading,
            **shared,
        )
    order = Order(length=len(train), batch_size=batch_size, seed=config.seed, repeats=config.augment.repeats)
    array = train.array()
    if array is not None and config.data.resident != "never" and _fits(array.nbytes, device):
        pictures = torch.from_numpy(np.ascontiguousarray(array.transpose(0, 3, 1, 2)))
        if framing.channels == 3 and pictures.shape[1] == 1:
            pictures = pictures.expand(-1, 3, -1, -1).contiguous()
        labels = torch.from_numpy(train.labels).to(device)
        return ResidentFeed(pictures.to(device), labels, order=order, **shared)
    train = train.decoded(at_least=cropping.least)
    shared |= {"order": order, "bad_limit": config.data.bad_limit}
    limit, threads = _kept_limit(config, world), max(reading["workers"], 1)
    if array is not None or not limit:
        return FileFeed(train, **reading, **shared)
    if config.augment.crop != "resized":
        size = framed_bytes(len(train), cropping)
        if size <= limit and _fits(size, device):
            return KeptFeed(train, framing=cropping, device=device, threads=threads, **shared)
        return FileFeed(train, **reading, **shared)
    size = decoded_bytes(train)
    if device.type == "cpu" and size <= limit:
        reading["workers"] = 0  # cropping is little work, and processes beside it would hinder the model's threads
    if size > limit or not _inherits(reading["workers"]):
        return FileFeed(train, **reading, **shared)
    feed = FileFeed(Kept(train, limit=limit, threads=threads), threads=threads, **reading, **shared)
    feed.notes = [kept_note(len(train), size)]
    return feed


def _kept_limit(config: TrainConfig, world: World) -> float:
    """Return how many bytes of decoded files this process may keep."""
    return {"always": math.inf, "auto": LIMIT / world.size, "never": 0}[config.data.resident]


def _inherits(workers: int) -> bool:
    """Whether the processes that read share the memory of this one, rather than getting a copy each."""
    return not workers or multiprocessing.get_start_method() == "fork"


def limit_pictures(train: Source | Stream, limit: int | None) -> Source | Stream:
    """Return the first so many pictures, as evenly over the classes as they allow."""
    if limit is None:
        return train
    if isinstance(train, Stream):
        raise ConfigError("data.train_limit was given; a stream cannot be cut by class")
    rank = np.empty(len(train), dtype=np.int64)  # of a picture among those of its class
    for label in range(len(train.classes)):
        places = np.flatnonzero(train.labels == label)
        rank[places] = np.arange(len(places))
    return train.subset(np.sort(np.argsort(rank, kind="stable")[:limit]))


def _statistics(array: np.ndarray) -> tuple[list[float], list[float]]:
    """Return mean and deviation of each channel, from 0 to 1, rounded so that they can be read and repeated."""
    sample = array[:: max(len(array) // 10_000, 1)].astype(np.float64) / 255
    mean, std = sample.mean((0, 1, 2)), sample.std((0, 1, 2))
    return [round(float(v), 4) for v in mean], [round(max(float(v), 1e-3), 4) for v in std]


def _model_cfg(name: str) -> dict[str, Any]:
    import timm

    cfg = timm.get_pretrained_cfg(name)
    found = cfg.to_dict() if cfg is not None else {}
    fallback = {"input_size": (3, 224, 224), "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    return fallback | {key: value for key, value in found.items() if value is not None}


def _shorter(config: TrainConfig, shape: Shape) -> int:
    """Return the side pictures are brought to before their middle is taken, as the model's authors did it."""
    return round(shape.img_size / float(_model_cfg(config.model.name).get("crop_pct") or 1.0))


def _workers(config: TrainConfig, data: Data) -> int:
    if not isinstance(data.train, Stream) and data.train.array() is not None:
        return 0
    if config.data.workers is not None:
        return config.data.workers
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)


def _validation_batch(config: TrainConfig, device: torch.device) -> int:
    # without gradients, memory allows more; small pictures then fill a GPU
    return max(config.optim.batch_size, 2048 if device.type == "cuda" and (config.data.img_size or 224) <= 64 else 1)


def _fits(size: int, device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return size < RESIDENT_SHARE * free
