"""Everything a run is made of, from its settings."""

import math
import multiprocessing
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..building import build_model, build_task
from ..config import ConfigError, TrainConfig, overlay, short
from ..data.draws import Order, part, steps_of_epoch
from ..data.feed import Feed, ResidentFeed
from ..data.kept import LIMIT, Kept, KeptFeed, Memory, decoded_bytes, framed_bytes, kept_note
from ..data.loader import FileFeed, StreamFeed
from ..data.open import Data
from ..data.source import Source, Stream
from ..data.spec import InputSpec
from ..data.validation import Validation
from ..kernels import table
from ..kernels.switch import chosen
from ..settings.families import family_of
from ..spawning import cores
from ..starting import Known, known_of
from ..tasks import MetricSpec, Task
from ..tasks.opening import TaskChoice
from ..weights import describe
from .defaults import (
    batch_for,
    epochs_for,
    notes_on,
    options_for,
    settle_strength,
    side_for,
    typical_side,
)
from .families import family_notes, small_options
from .identity import beside_of, identity_of
from .parallel import World
from .recipes import variant_notes
from .unread import Situation, refuse_unread

RESIDENT_SHARE, VALIDATION_SHARE = 0.4, 0.1  # of the device's free memory a set may take, and validation samples


@dataclass
class Parts:
    """What a loop works with."""

    data: Data
    spec: InputSpec
    feed: Feed
    validation: Validation
    task: Task
    metrics: tuple[MetricSpec, ...]  # what answers are judged by
    primary: MetricSpec  # the one that counts
    identity: dict[str, Any]  # of the samples


def resolve(
    config: TrainConfig,
    choice: TaskChoice,
    data: Data,
    device: torch.device,
    *,
    given: Iterable[str] = (),
    begun: bool = False,
) -> tuple[TrainConfig, InputSpec]:
    """Fill in what the settings leave to the task, the data and the device.

    Args:
        given: settings that a user gave, by dotted name, which have to be read.
        begun: whether they are those of a run that is resumed: it keeps its model, whatever the weights that it began
            with say of themselves by now.
    """
    chosen(config.engine.kernels, table.names())  # a name that there is none of is refused
    asked = config
    config, left = choice.kind.adapt(config)
    array = None if isinstance(data.train, Stream) else data.train.array()
    name = choice.kind.hosts.find_model(config.model.name)
    model_cfg = _model_cfg(name)
    known = (
        None if choice.kind.hosts.builds(name) else known_of(config.model, model_cfg)
    )  # with weights: what they know
    side = None if choice.kind.hosts.builds(name) else typical_side(data.train)
    size = config.data.img_size or (
        known.img_size
        if known is not None and choice.kind.largest is None
        else array.shape[1]
        if array is not None
        else side_for(side, model_cfg["input_size"][-1], largest=choice.kind.largest)
    )
    grey = array is not None and array.shape[3] == 1
    channels = (1 if grey else 3) if known is None else known.in_chans
    mean, std = config.data.mean, config.data.std
    if mean is None or std is None:
        measured = _statistics(array) if array is not None else (list(model_cfg["mean"]), list(model_cfg["std"]))
        usual = measured if known is None else (known.mean, known.std)
        mean, std = mean or usual[0], std or usual[1]
    if not len(mean) == len(std) == channels:
        raise ConfigError(f"data.mean and data.std have {len(mean)} and {len(std)} numbers for {channels} channels")
    gpu = device.type == "cuda"
    precision = config.engine.precision
    samples = data.train.length if isinstance(data.train, Stream) else len(data.train)
    samples = min(samples, config.data.train_limit or samples) if samples is not None else None
    family = family_of(config.recipe, name)
    batch, rate = batch_for(config, samples, few_rate=None if family is None else family.few_rate)
    epochs = epochs_for(config, samples, batch)
    options = config.model.options if known is None or begun else {**known.options, **config.model.options}
    patches = small_options(config, name, size) if known is None else {}
    resolved = overlay(
        settle_strength(config, epochs),
        {
            "task": config.task or choice.kind.name,
            "data": {"img_size": size, "mean": mean, "std": std, "workers": _workers(config, data)},
            "model": {"name": name, "options": options_for(name, options, size) | patches},
            "optim": {"batch_size": batch, "lr": rate, "least_steps": None},
            "schedule": {"epochs": epochs, "steps": None},
            "engine.precision": ("bfloat16" if gpu else "float32") if precision == "auto" else precision,
            "engine.compile": gpu if config.engine.compile is None else config.engine.compile,
        },
    )
    refuse_unread(given, Situation(asked, resolved, choice, data, device))
    spec = InputSpec(outputs=data.outputs, in_chans=channels, img_size=size, mean=mean, std=std, task=choice.kind.name)
    spec.shorter = size if array is not None else _shorter(resolved, spec)  # arrays are taken whole
    choice.complete_spec(spec, data, resolved.model)
    describe(resolved.model, spec)  # what no file of weights can say is refused before it is trained
    spec.notes += [*left, *variant_notes(config), *_overridden(config, known), *family_notes(config, patches)]
    spec.notes += notes_on(config, resolved, side=side, samples=samples)
    if channels == 1 and not grey:
        spec.notes.append(f"{config.model.checkpoint} was trained on grey images: images are made grey for it")
    return resolved, spec


def _overridden(config: TrainConfig, known: Known | None) -> list[str]:
    """Tell which options are others than those that the weights were trained with."""
    before = {} if known is None else known.options
    given = config.model.options
    return [
        f"model.options.{name} = {short(repr(given[name]))} was given; the weights were trained with "
        f"{short(repr(value))}"
        for name, value in before.items()
        if name in given and given[name] != value
    ]


def assemble(
    config: TrainConfig, choice: TaskChoice, data: Data, spec: InputSpec, *, world: World, device: torch.device
) -> Parts:
    """Build the feed, the validation samples and the task of resolved settings."""
    train = limit_samples(data.train, config.data.train_limit)
    known = None if isinstance(train, Stream) else train
    model: Any = build_model(config.model, spec, seed=config.seed)
    if config.engine.grad_checkpointing:
        if not hasattr(model, "set_grad_checkpointing"):
            raise ConfigError(f"engine.grad_checkpointing was asked for and {config.model.name} does not offer it")
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
        size = framed_bytes(len(data.val), spec.framing)
        validation = Validation(
            data.val,
            encode=choice.kind.codec(spec).encoder(),
            framing=spec.framing,
            batch_size=_validation_batch(config, device),
            device=device,
            workers=config.data.workers or 0,
            keep=size <= _kept_limit(config, world),
            kept_on=device if _fits(size, device, VALIDATION_SHARE) else None,
            memory=data.memory,
            **ranked,
        )
        feed = _feed(train, config, choice.kind, spec, task, world=world, device=device, memory=data.memory)
        made = feed, validation
    feed, validation = made
    identity = identity_of(train, data.val, steps=feed.steps) | beside_of(task, spec)
    metrics = choice.kind.metrics.metric_specs(spec), choice.kind.metrics.primary_metric(spec)
    return Parts(data, spec, feed, validation, task, *metrics, identity)


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
    order = Order(length=len(train), batch_size=batch_size, seed=config.seed, repeats=repeats, **ranked)
    array = train.array()
    resident = train.targets.in_rows and config.data.resident != "never" and encode is plain
    made_grey = array is not None and spec.in_chans < array.shape[3]  # by the framing
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
    if config.augment.crop != "resized":
        if keeps_encoded(config, spec, len(train), world=world, device=device):
            size = framed_bytes(len(train), cropping)
            made = {"encode": encode, "size": size, "device": device, "threads": threads, "memory": memory}
            return KeptFeed(train, **made, **shared)
        return FileFeed(train, **reading, **shared)
    size = decoded_bytes(train)
    if device.type == "cpu" and size <= limit:
        reading["workers"] = 0  # cropping is little work, and processes beside it would hinder the model's threads
    if size > limit or not _inherits(reading["workers"]):
        return FileFeed(train, **reading, **shared)
    feed = FileFeed(Kept(train, limit=limit, threads=threads), threads=threads, **reading, **shared)
    feed.notes = [kept_note(len(train), size)]
    return feed


def keeps_encoded(config: TrainConfig, spec: InputSpec, count: int, *, world: World, device: torch.device) -> bool:
    """Whether so many training images of files are kept as they are encoded, so that no step waits for reading."""
    size = framed_bytes(count, spec.framing)
    return config.augment.crop != "resized" and size <= _kept_limit(config, world) and _fits(size, device)


def _kept_limit(config: TrainConfig, world: World) -> float:
    """Return how many bytes of decoded files this process may keep."""
    return {"always": math.inf, "auto": LIMIT / world.size, "never": 0}[config.data.resident]


def _inherits(workers: int) -> bool:
    """Whether the processes that read share the memory of this one, rather than getting a copy each."""
    return not workers or multiprocessing.get_start_method() == "fork"


def limit_samples(train: Source | Stream, limit: int | None) -> Source | Stream:
    """Return the first so many samples, as evenly over the classes, or other strata, as they allow."""
    if limit is None:
        return train
    if isinstance(train, Stream):
        raise ConfigError("data.train_limit was given; a stream cannot be cut by class")
    strata = train.targets.strata()
    rank = np.empty(len(train), dtype=np.int64)  # of a sample among those of its stratum
    for stratum in np.unique(strata):
        places = np.flatnonzero(strata == stratum)
        rank[places] = np.arange(len(places))
    return train.subset(np.sort(np.argsort(rank, kind="stable")[:limit]))


def _statistics(array: np.ndarray) -> tuple[list[float], list[float]]:
    """Return mean and deviation of each channel, from 0 to 1, rounded so that they can be read and repeated."""
    sample = array[:: max(len(array) // 10_000, 1)]
    counts = np.stack([np.bincount(sample[..., channel].ravel(), minlength=256) for channel in range(sample.shape[3])])
    share, level = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = share @ level
    std = np.sqrt((share * (level - mean[:, None]) ** 2).sum(1))
    return [round(float(v), 4) for v in mean], [round(max(float(v), 1e-3), 4) for v in std]


def _model_cfg(name: str) -> dict[str, Any]:
    import timm

    cfg = timm.get_pretrained_cfg(name)
    found = cfg.to_dict() if cfg is not None else {}
    fallback = {"input_size": (3, 224, 224), "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    return fallback | {key: value for key, value in found.items() if value is not None}


def _shorter(config: TrainConfig, spec: InputSpec) -> int:
    """Return the side images are brought to before their middle is taken, as the model's authors did it."""
    return round(spec.img_size / float(_model_cfg(config.model.name).get("crop_pct") or 1.0))


def _workers(config: TrainConfig, data: Data) -> int:
    if not isinstance(data.train, Stream) and data.train.array() is not None:
        return 0
    if config.data.workers is not None:
        return config.data.workers
    return min(cores(), 8)


def _validation_batch(config: TrainConfig, device: torch.device) -> int:
    # without gradients, memory allows more; small images then fill a GPU
    return max(config.optim.batch_size, 2048 if device.type == "cuda" and (config.data.img_size or 224) <= 64 else 1)


def _fits(size: int, device: torch.device, share: float = RESIDENT_SHARE) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return size < share * free
