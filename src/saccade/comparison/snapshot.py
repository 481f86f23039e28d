"""What a run of an arm stands on: pictures, their order and draws, first weights; read off what training uses."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ..config import TrainConfig, overlay
from ..data.feed import Batch, Feed, sample_keys
from ..data.open import Data
from ..data.source import Stream
from ..tasks import Task
from ..tasks.metric import MetricSpec
from ..tasks.opening import TaskChoice, find_task, open_samples
from ..training.parallel import Alone
from ..training.setup import Parts, assemble, limit_samples, resolve

EPOCHS = 2  # whose order and draws are looked at
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Pictures:
    """A set by what tells it from others."""

    fingerprint: str
    count: int


@dataclass(frozen=True)
class ArmSnapshot:
    """What a run stands on before its first step.

    Attributes:
        config: resolved settings.
        train: the training pictures, after `data.train_limit`.
        val: the validation pictures.
        order: which picture comes when, one tensor an epoch, N int64; empty for streams.
        copies: which copy of the picture that is, alike.
        keys: what its augmentation is drawn from, alike.
        batch_size: pictures of a step.
        steps: of an epoch.
        weights: first values of the model's tensors: name to shape and checksum.
        extra: the same for what the task adds to the model.
        parameters: of the model.
        macs: multiply-adds of one picture through the model; None where they cannot be counted.
        metrics: what its answers are judged by.
        primary: name of the one that counts.
        notes: what building it had to say.
    """

    config: TrainConfig
    train: Pictures
    val: Pictures
    order: tuple[Tensor, ...]
    copies: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]
    batch_size: int
    steps: int
    weights: dict[str, tuple[tuple[int, ...], str]]
    extra: dict[str, tuple[tuple[int, ...], str]]
    parameters: int
    macs: int | None
    metrics: tuple[MetricSpec, ...]
    primary: str
    notes: tuple[str, ...]


class DataCache:
    """Sets of samples that were opened, so that arms that share one open it once."""

    def __init__(self) -> None:
        self.opened: dict[Any, tuple[TaskChoice, Data]] = {}
        self.known: dict[int, Pictures] = {}

    def open(self, config: TrainConfig) -> tuple[TaskChoice, Data]:
        """Return the task and the samples of a run's settings."""
        data = config.data
        name = (config.task, data.path, data.val, data.val_share, data.split_seed, data.buffer)
        if name not in self.opened:
            self.opened[name] = open_samples(config.task, data)
        return self.opened[name]

    def validation(self, config: TrainConfig) -> Pictures:
        """Return what tells the validation pictures of a run from others."""
        val = self.open(config)[1].val
        if id(val) not in self.known:  # the set stays in `opened`, so its id stays its own
            self.known[id(val)] = Pictures(val.fingerprint(), len(val))
        return self.known[id(val)]


def inspect_arm(config: TrainConfig, cache: DataCache, device: torch.device) -> ArmSnapshot:
    """Build what a run of these settings would begin with, on the CPU, and describe it.

    Args:
        config: of the run, with its seed.
        cache: opens the samples.
        device: that the run is meant for.
    """
    choice, data = cache.open(config)
    resolved, spec = resolve(config, choice, data, device)
    # Nothing is decoded or resized for a look: one validation picture is enough, and pictures stay where they are.
    looked = overlay(resolved, {"data.resident": "never", "data.workers": 0})
    parts = assemble(looked, choice, replace(data, val=data.val.subset([0])), spec, world=Alone(), device=CPU)
    order, copies, keys = _order(parts.feed)
    model, task = parts.task.model, parts.task
    mine = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    rest = {name: t for name, t in (*task.named_parameters(), *task.named_buffers()) if id(t) not in mine}
    return ArmSnapshot(
        config=resolved,
        train=_training(data, resolved.data.train_limit),
        val=cache.validation(config),
        order=order,
        copies=copies,
        keys=keys,
        batch_size=resolved.optim.batch_size,
        steps=parts.feed.steps,
        weights={name: _describe(tensor) for name, tensor in model.state_dict().items()},
        extra={name: _describe(tensor) for name, tensor in rest.items()},
        parameters=sum(p.numel() for p in model.parameters()),
        macs=count_macs(task, _one_sample(parts)),
        metrics=parts.metrics,
        primary=parts.primary.name,
        notes=(*data.notes, *spec.notes),
    )


def count_macs(task: Task, batch: Batch) -> int | None:
    """Return the multiply-adds of a task's model asked about a batch."""
    model, was_training = task.model, task.model.training
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model.eval()
            task.ask(batch)
        return int(counter.get_total_flops()) // 2
    except (RuntimeError, NotImplementedError):
        return None
    finally:
        model.train(was_training)


def _one_sample(parts: Parts) -> Batch:
    """Return a blank picture, or a sample of another kind as it is validated on."""
    spec = parts.spec
    if find_task(spec.task).reads == "image":
        return {"image": torch.zeros(1, spec.in_chans, spec.img_size, spec.img_size)}
    return parts.feed.expanding.plain(next(iter(parts.validation.batches())))


def _order(feed: Feed) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
    order = feed.order
    if order is None:
        return (), (), ()
    epochs = [order.epoch(epoch) for epoch in range(EPOCHS)]
    keys = tuple(sample_keys(order.seed, epoch, *drawn) for epoch, drawn in enumerate(epochs))
    return tuple(index for index, _ in epochs), tuple(copies for _, copies in epochs), keys


def _training(data: Data, limit: int | None) -> Pictures:
    train = limit_samples(data.train, limit)
    if isinstance(train, Stream):
        about = f"{data.name} {data.outputs} {train.length}"
        return Pictures(hashlib.sha256(about.encode()).hexdigest(), train.length or 0)
    return Pictures(train.fingerprint(), len(train))


def _describe(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return tuple(tensor.shape), hashlib.blake2b(raw, digest_size=12).hexdigest()
