"""Build the components of a run from its settings."""

import math
import multiprocessing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..building.build import build_model, build_task
from ..data.cache import (
    CachedSource,
    EncodedFeed,
    Memory,
    cache_note,
    decoded_bytes,
    encoded_bytes,
    framed_bytes,
)
from ..data.draws import GroupOrder, Order, part
from ..data.feed import Feed, ResidentFeed
from ..data.loader import FileFeed, StreamFeed
from ..data.open import Data
from ..data.sides import canvas_groups
from ..data.source import Source, Stream
from ..data.spec import InputSpec
from ..data.validation import Validation
from ..plugins import LoRA, attached
from ..settings import ConfigError, TrainConfig
from ..settings.machine_rules import LIMIT
from ..settings.sizes import steps_of_epoch
from ..tasks import MetricSpec, Task
from ..tasks.opening import TaskChoice
from .identity import identity_of, other_inputs
from .parallel import World

RESIDENT_SHARE, VALIDATION_SHARE = (
    0.4,
    0.1,
)  # of free device memory, for resident and for validation samples


@dataclass
class TrainingParts:
    """The components of a training run."""

    data: Data
    spec: InputSpec
    feed: Feed
    validation: Validation
    task: Task
    metrics: tuple[MetricSpec, ...]  # reported metrics
    primary: MetricSpec  # the primary metric
    identity: dict[str, Any]  # fingerprint of the samples


def assemble(
    config: TrainConfig, choice: TaskChoice, data: Data, spec: InputSpec, *, world: World, device: torch.device
) -> TrainingParts:
    """Build the feed, the validation samples and the task of resolved settings."""
    train = limit_samples(data.train, config.data.train_limit)
    known = None if isinstance(train, Stream) else train
    model: Any = build_model(config.model, spec, seed=config.seed)
    begun = config.model.checkpoint or (config.model.pretrained and not spec.extra.get("scratch"))
    if not begun and any(isinstance(handle.plugin, LoRA) for handle in attached(model)):
        spec.notes.append(
            "lora trains adapters beside random weights, which stay as they are; start from trained ones, with "
            "--pretrained or --checkpoint"
        )
    if config.engine.grad_checkpointing:
        if not hasattr(model, "set_grad_checkpointing"):
            raise ConfigError(
                f"engine.grad_checkpointing was given, but {config.model.name} does not support gradient "
                "checkpointing; remove it"
            )
        model.set_grad_checkpointing(True)
    task = build_task(
        model,
        choice,
        config.model,
        config.loss,
        spec,
        seed=config.seed,
        counts=None if known is None else torch.from_numpy(known.counts()),
        total=None if known is None else len(known),
    )
    task = task.to(device)
    if config.engine.channels_last and device.type == "cuda":
        task = task.to(memory_format=torch.channels_last)
    ranked: dict[str, Any] = {"rank": world.rank, "world": world.size}
    made = choice.kind.codec(spec).own_batches(train, data.val, config, device=device, **ranked)
    if made is None:
        encode, plain = choice.kind.codec(spec).encoder(), data.val.targets.in_rows
        size = framed_bytes(len(data.val), spec.framing) if plain else encoded_bytes(data.val, encode)
        validation = Validation(
            data.val,
            encode=encode,
            framing=spec.framing,
            batch_size=_validation_batch(config, device),
            device=device,
            workers=config.data.workers or 0,
            keep=size <= _kept_limit(config, world, validation=True),
            kept_on=device if _fits(size, device, VALIDATION_SHARE) else None,
            memory=data.memory,
            **ranked,
        )
        feed = _feed(train, config, choice.kind, spec, task, world=world, device=device, memory=data.memory)
        made = feed, validation
    feed, validation = made
    identity = identity_of(train, data.val, steps=feed.steps) | other_inputs(task, spec)
    metrics = choice.kind.metrics.metric_specs(spec), choice.kind.metrics.primary_metric(spec)
    return TrainingParts(data, spec, feed, validation, task, *metrics, identity)


def _feed(
    train: Source | Stream,
    config: TrainConfig,
    kind: type[Task],
    spec: InputSpec,
    task: Task,
    *,
    world: World,
    device: torch.device,
    memory: Memory,
) -> Feed:
    expand = kind.codec(spec).expander(config.augment, config.loss, device=device)
    ranked: dict[str, Any] = {"rank": world.rank, "world": world.size}
    shared: dict[str, Any] = {"expand": expand}
    cropping = replace(spec.framing, config=config.augment)
    plain = kind.codec(spec).encoder(config.augment)
    encode = task.read_along(plain)
    reading: dict[str, Any] = {
        "encode": encode,
        "device": device,
        "workers": config.data.workers or 0,
    }
    batch_size = config.optim.batch_size
    if isinstance(train, Stream):
        length = len(train.indexed()) if train.length is None else train.length
        mine = part(batch_size, world.rank, world.size)
        return StreamFeed(
            train.decoded(at_least=cropping.least),
            steps=steps_of_epoch(length, batch_size),
            batch_size=mine.stop - mine.start,
            seed=config.seed,
            bad_limit=config.data.bad_limit,
            **reading,
            **shared,
            **ranked,
        )
    repeats = config.augment.repeats
    ordered: dict[str, Any] = {"length": len(train), "batch_size": batch_size, "seed": config.seed, **ranked}
    groups = canvas_groups(spec.framing, train.targets) if repeats == 1 else None
    order = Order(repeats=repeats, **ordered) if groups is None else GroupOrder(groups=groups, **ordered)
    array = train.array()
    resident = train.targets.in_rows and config.data.resident in ("auto", "always") and encode is plain
    made_grey = array is not None and spec.in_chans < array.shape[3]  # converted by the framing
    if array is not None and resident and not made_grey and _fits(array.nbytes, device):
        images = torch.from_numpy(np.ascontiguousarray(array.transpose(0, 3, 1, 2)))
        if spec.in_chans == 3 and images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1).contiguous()
        targets = torch.from_numpy(train.targets.rows)
        return ResidentFeed({"image": images.to(device), "target": targets.to(device)}, order=order, **shared)
    train = train.decoded(at_least=cropping.least)
    shared |= {"order": order, "bad_limit": config.data.bad_limit}
    limit, threads = _kept_limit(config, world), max(reading["workers"], 1)
    if array is not None or not limit:
        return FileFeed(train, **reading, **shared)
    if config.augment.crop != "resized" and not spec.framing.drawn:
        if keeps_encoded(config, spec, len(train), world=world, device=device):
            size = framed_bytes(len(train), cropping)
            made = {"encode": encode, "size": size, "device": device, "threads": threads, "memory": memory}
            return EncodedFeed(train, **made, **shared)
        return FileFeed(train, **reading, **shared)
    size = decoded_bytes(train)
    if device.type == "cpu" and size <= limit:
        reading["workers"] = 0  # cropping is cheap, and workers would compete with the model's threads
    if size > limit or not _inherits(reading["workers"]):
        return FileFeed(train, **reading, **shared)
    feed = FileFeed(CachedSource(train, limit=limit, threads=threads), threads=threads, **reading, **shared)
    feed.notes = [cache_note(len(train), size)]
    return feed


def keeps_encoded(config: TrainConfig, spec: InputSpec, count: int, *, world: World, device: torch.device) -> bool:
    """Whether `count` training images of files are cached in encoded form."""
    if config.augment.crop == "resized" or spec.framing.drawn:
        return False
    size = framed_bytes(count, spec.framing)
    return size <= _kept_limit(config, world) and _fits(size, device)


def sizes_in_memory(config: TrainConfig, kind: type[Task], data: Data, spec: InputSpec) -> tuple[float, float] | None:
    """Return the bytes of decoded training and validation images; None where only encoding them with targets tells."""
    if kind.reader.reads != "image" or not data.val.targets.in_rows:
        return None
    val = framed_bytes(len(data.val), spec.framing)
    if isinstance(data.train, Stream):
        return math.inf, val
    count, framing = min(len(data.train), config.data.train_limit or len(data.train)), spec.framing
    if data.train.array() is not None or not (config.augment.crop == "resized" or framing.drawn):
        return framed_bytes(count, framing), val
    cropped = data.train.decoded(at_least=replace(framing, config=config.augment).least)
    return decoded_bytes(cropped) * count / len(data.train), val


def _kept_limit(config: TrainConfig, world: World, *, validation: bool = False) -> float:
    """Return how many bytes of decoded training or validation images this process may cache."""
    fixed = {"always": math.inf, "validation": math.inf if validation else 0, "never": 0}
    return fixed.get(config.data.resident, LIMIT / world.size)


def _inherits(workers: int) -> bool:
    """Whether workers share this process's memory instead of copying it."""
    return not workers or multiprocessing.get_start_method() == "fork"


def limit_samples(train: Source | Stream, limit: int | None) -> Source | Stream:
    """Return the first `limit` samples, stratified by class."""
    if limit is None:
        return train
    if isinstance(train, Stream):
        raise ConfigError("data.train_limit was given, but a stream cannot be reduced by class; remove it")
    strata = train.targets.strata()
    rank = np.empty(len(train), dtype=np.int64)  # rank within the stratum
    for stratum in np.unique(strata):
        places = np.flatnonzero(strata == stratum)
        rank[places] = np.arange(len(places))
    return train.subset(np.sort(np.argsort(rank, kind="stable")[:limit]))


def _validation_batch(config: TrainConfig, device: torch.device) -> int:
    # without gradients there is memory for larger batches, which small images need to fill a GPU
    return max(config.optim.batch_size, 2048 if device.type == "cuda" and (config.data.img_size or 224) <= 64 else 1)


def _fits(size: int, device: torch.device, share: float = RESIDENT_SHARE) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return size < share * free
