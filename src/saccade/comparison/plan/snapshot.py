"""Snapshots of arms before training, taken from what training uses, and checks of what two arms share."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ...data.feed import Batch, Feed, sample_keys
from ...data.open import Data
from ...data.source import Stream
from ...runs.run import RunError
from ...settings import TrainConfig, flatten, overlay
from ...settings.decisions import Decision
from ...support.wording import count_of
from ...tasks import Task
from ...tasks.metric import MetricSpec
from ...tasks.opening import TaskChoice, find_task, open_samples
from ...training.engine import describe_kind, repeated_blocks
from ...training.identity import starts_from
from ...training.parallel import Alone
from ...training.resolve import resolve
from ...training.setup import TrainingParts, assemble, limit_samples
from .arms import changed

EPOCHS = 2  # whose order and draws are looked at
LOOKED = 200_000  # places of an epoch whose draws are looked up
CPU = torch.device("cpu")
# Settings of the data that change nothing about which samples are opened; all others, new ones too, may.
USED_LATER: dict[str, Any] = dict.fromkeys(("img_size", "mean", "std", "workers", "train_limit"))
USED_LATER["resident"] = "auto"


@dataclass(frozen=True)
class SampleSet:
    """Fingerprint of a dataset."""

    fingerprint: str
    count: int


@dataclass(frozen=True)
class ArmSnapshot:
    """The inputs of a run before its first step."""

    config: TrainConfig  # resolved settings
    train: SampleSet  # the training images, after `data.train_limit`
    val: SampleSet  # the validation images
    order: tuple[Tensor, ...]  # which image comes when, one tensor an epoch, N int64; empty for streams
    copies: tuple[Tensor, ...]  # which copy of the image that is, alike
    keys: tuple[Tensor, ...]  # what its augmentation is drawn from, alike
    batch_size: int  # images of a step
    steps: int  # of an epoch
    weights: dict[str, tuple[tuple[int, ...], str]]  # first values of the model's tensors: name to shape and checksum
    extra: dict[str, tuple[tuple[int, ...], str]]  # the same for what the task adds to the model
    parameters: int  # of the model
    macs: int | None  # multiply-adds of one image through the model; None where they cannot be counted
    kinds: frozenset[str]  # of its repeated blocks, each of which is compiled by itself
    metrics: tuple[MetricSpec, ...]  # what its answers are judged by
    primary: str  # name of the one that counts
    notes: tuple[str, ...]  # what building it had to say
    beside: dict[str, str]  # what tells apart the weights that it starts from, and what it learns from
    own_frame: bool = False  # whether it counts in the original images' pixels
    decisions: tuple[Decision, ...] = ()  # by which its settings differ from the recipe


class DataCache:
    """Cache of opened datasets, so that arms that share one open it once."""

    def __init__(self) -> None:
        self.opened: dict[str, tuple[TaskChoice, Data]] = {}
        self.known: dict[int, SampleSet] = {}

    def open(self, config: TrainConfig) -> tuple[TaskChoice, Data]:
        """Return the task and the samples for a run's settings."""
        name = json.dumps([config.task, asdict(replace(config.data, **USED_LATER))], sort_keys=True)
        if name not in self.opened:
            self.opened[name] = open_samples(config.task, config.data)
        return self.opened[name]

    def validation(self, config: TrainConfig) -> SampleSet:
        """Return the fingerprint of a run's validation images."""
        val = self.open(config)[1].val
        if id(val) not in self.known:  # the set stays in `opened`, so its id stays its own
            self.known[id(val)] = SampleSet(val.fingerprint(), len(val))
        return self.known[id(val)]


def inspect_arm(config: TrainConfig, cache: DataCache, device: torch.device) -> ArmSnapshot:
    """Build the initial state of a run on the CPU, and take its snapshot."""
    choice, data = cache.open(config)
    resolved, spec = resolve(config, choice, data, device)
    # Nothing is decoded or resized for a look: one validation image is enough, and images stay where they are.
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
        kinds=frozenset(map(describe_kind, repeated_blocks(task))),
        metrics=parts.metrics,
        primary=parts.primary.name,
        notes=(*data.notes, *spec.notes),
        beside=task.learns_from() | starts_from(resolved.model, choice),
        own_frame=spec.own_frame,
    )


def count_macs(task: Task, batch: Batch) -> int | None:
    """Return the multiply-adds of a task's model on a batch."""
    model, was_training = task.model, task.model.training
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model.eval()
            task.ask(batch)
        return int(counter.get_total_flops()) // 2
    # Hooks of the counter bear no views of parameters, and some models no single image.
    except (RuntimeError, ValueError, AssertionError):
        return None
    finally:
        model.train(was_training)


def _one_sample(parts: TrainingParts) -> Batch:
    """Return a blank image, or a validation sample of another kind."""
    spec = parts.spec
    if find_task(spec.task).reader.reads == "image":
        return {"image": torch.zeros(1, spec.in_chans, spec.img_size, spec.img_size)}
    return parts.feed.expanding.plain(next(iter(parts.validation.batches())))


def _order(feed: Feed) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
    order = feed.order
    if order is None:
        return (), (), ()
    epochs = [order.epoch(epoch) for epoch in range(EPOCHS)]
    keys = tuple(sample_keys(order.seed, epoch, *drawn) for epoch, drawn in enumerate(epochs))
    return tuple(index for index, _ in epochs), tuple(copies for _, copies in epochs), keys


def _training(data: Data, limit: int | None) -> SampleSet:
    train = limit_samples(data.train, limit)
    if isinstance(train, Stream):
        about = f"{data.name} {data.outputs} {train.length}"
        return SampleSet(hashlib.sha256(about.encode()).hexdigest(), train.length or 0)
    return SampleSet(train.fingerprint(), len(train))


def _describe(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return tuple(tensor.shape), hashlib.blake2b(raw, digest_size=12).hexdigest()


def unchanged(
    folder: Path, snapshots: Mapping[str, tuple[ArmSnapshot, bool]], known: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what all runs of a comparison share; refuse to mix runs from before and after it changed.

    Args:
        snapshots: of the arms as they would go on, and whether one has runs left to train, by what tells their runs
            from others.
        known: what was in common when the comparison in the folder was begun.
    """
    kept = dict(known)
    for key, (one, goes_on) in snapshots.items():
        precision = one.config.engine.precision
        found: dict[str, Any] = {"train": one.train.fingerprint, "val": one.val.fingerprint, "precision": precision}
        before = kept.setdefault(key, found | ({"beside": one.beside} if one.beside else {}))
        if goes_on and before.get("precision", precision) != precision:  # comparisons begun earlier do not say
            raise RunError(
                f"the comparison in {folder} was started in {before['precision']} and would continue in {precision} "
                "on this device, so its runs could not be compared with new ones. Resume it on the same kind of "
                "device with --device, or choose another directory with --out"
            )
        other = [what for what, was in before.get("beside", {}).items() if one.beside.get(what) != was]
        if goes_on and other:
            raise RunError(
                f"{' and '.join(other)} changed since the comparison in {folder} was started, so its runs cannot be "
                "compared with new ones. Restore the original, or choose another directory with --out"
            )
        if any(before[name] != found[name] for name in ("train", "val")):
            raise RunError(
                f"the samples of {one.config.data.path or 'the bundled dataset'} have changed since the comparison in "
                f"{folder} was started, so its runs cannot be compared with new ones. Choose another directory with "
                "--out, or restore the samples"
            )
    return kept


@dataclass(frozen=True)
class Check:
    """A check of whether two arms are equal in something."""

    what: str  # the thing
    equal: bool  # whether it is the same in both arms
    detail: str  # what is the same, or why it is not

    def __str__(self) -> str:
        return f"{self.what}: {'equal' if self.equal else 'differs'}{', ' if self.detail else ''}{self.detail}"


def check_all(reference: ArmSnapshot, arm: ArmSnapshot) -> tuple[Check, ...]:
    """Return every check of an arm against the reference, for runs of one seed."""
    return tuple(check(reference, arm) for check in CHECKS)


def _because(reference: ArmSnapshot, arm: ArmSnapshot, *names: str) -> str:
    """Return which of the settings explain a difference; a name that ends with a dot means its group."""
    found = changed(reference.config, arm.config)
    detail = [f"{n} = {b!r}, not {a!r}" for n, (a, b) in found.items() if n.startswith(names)]
    return f"because {'; '.join(detail)}" if detail else "not explained by any setting"


def _training_samples(reference: ArmSnapshot, arm: ArmSnapshot) -> Check:
    equal = reference.train == arm.train
    detail = f"{arm.train.count:,} samples, fingerprint {arm.train.fingerprint[:12]}"
    if not equal:
        why = _because(reference, arm, "data.")
        detail = f"{arm.train.count:,} samples against {reference.train.count:,}, {why}"
    return Check("training samples", equal, detail)


def _validation_samples(reference: ArmSnapshot, arm: ArmSnapshot) -> Check:
    equal = reference.val == arm.val
    detail = f"{arm.val.count:,} samples, fingerprint {arm.val.fingerprint[:12]}"
    return Check("validation samples", equal, detail if equal else _because(reference, arm, "data.", "seed"))


def _same_order(reference: ArmSnapshot, arm: ArmSnapshot) -> Check:
    names = ("data.", "augment.repeats", "seed", "optim.batch_size")
    if not reference.order or not arm.order:
        equal = reference.train == arm.train and reference.config.data.workers == arm.config.data.workers
        detail = "the order of a stream is a function of seed, epoch and data.workers"
        return Check("order of the samples", equal, detail if equal else _because(reference, arm, *names))
    pairs = zip(reference.order, arm.order, strict=True)
    equal = all(torch.equal(a[: len(b)], b[: len(a)]) for a, b in pairs)
    detail = f"checked for {sum(len(x) for x in arm.order):,} positions in {len(arm.order)} epochs"
    return Check("order of the samples", equal, detail if equal else _because(reference, arm, *names))


def _batches(reference: ArmSnapshot, arm: ArmSnapshot) -> Check:
    equal = (reference.batch_size, reference.steps) == (arm.batch_size, arm.steps)
    detail = f"batch size {arm.batch_size}, {count_of(arm.steps, 'step')} per epoch"
    names = ("optim.batch_size", "data.")
    return Check("batches", equal, detail if equal else f"{detail}, {_because(reference, arm, *names)}")


def _draws(reference: ArmSnapshot, arm: ArmSnapshot) -> Check:
    """Compare the draws image by image, since they must not depend on the position in the epoch."""
    names = ("seed", "augment.repeats", "data.")
    if not reference.keys or not arm.keys:
        equal = reference.config.seed == arm.config.seed
        return Check("augmentation draws", equal, "functions of seed, epoch and sample" if equal else "because of seed")
    equal, shared = True, 0
    for epoch in range(len(arm.keys)):
        first, second = _drawn(reference, epoch), _drawn(arm, epoch)
        both = first.keys() & second.keys()
        shared += len(both)
        equal &= all(first[one] == second[one] for one in both) and bool(both)
        if reference.train == arm.train and len(first) == len(second):
            equal &= first.keys() == second.keys()
    detail = f"checked for {shared:,} samples in {len(arm.keys)} epochs"
    return Check("augmentation draws", equal, detail if equal else _because(reference, arm, *names))


def _drawn(snapshot: ArmSnapshot, epoch: int) -> dict[tuple[int, int], int]:
    index, copies, keys = (x[epoch][:LOOKED].tolist() for x in (snapshot.order, snapshot.copies, snapshot.keys))
    return dict(zip(zip(index, copies, strict=True), keys, strict=True))


def _same_settings(what: str, *names: str, detail: Callable[[TrainConfig], str] = lambda _: "") -> Any:
    def check(reference: ArmSnapshot, arm: ArmSnapshot) -> Check:
        first, second = flatten(reference.config), flatten(arm.config)
        equal = all(first[name] == second[name] for name in first if name.startswith(names))
        return Check(what, equal, detail(arm.config) if equal else _because(reference, arm, *names))

    return check


def _weights(reference: ArmSnapshot, arm: ArmSnapshot) -> Check:
    first, second = reference.weights, arm.weights
    shared = [name for name in first if name in second and first[name][0] == second[name][0]]
    differ = [name for name in shared if first[name] != second[name]]
    only_first = [name for name in first if name not in shared]
    only_second = [
        *(name for name in second if name not in shared),
        *(n for n in arm.extra if n not in reference.extra),
    ]
    detail = f"all {len(shared):,} tensors"
    if differ or only_first or only_second:
        detail = f"{len(shared) - len(differ):,} of {len(shared):,} shared tensors are equal"
        detail += f"; {len(differ):,} have other initial values ({_few(differ)})" if differ else ""
        detail += f"; {len(only_first):,} in the reference only ({_few(only_first)})" if only_first else ""
        detail += f"; {len(only_second):,} in this arm only ({_few(only_second)})" if only_second else ""
    return Check("initial weights", not (differ or only_first or only_second), detail)


def _schedule(reference: ArmSnapshot, arm: ArmSnapshot) -> Check:
    epochs = [snapshot.config.schedule.epochs for snapshot in (reference, arm)]
    steps = [count * snapshot.steps for count, snapshot in zip(epochs, (reference, arm), strict=True)]
    equal = reference.config.schedule == arm.config.schedule and steps[0] == steps[1]
    detail = f"{count_of(epochs[1], 'epoch')}, {count_of(steps[1], 'step')}"
    if not equal:
        why = _because(reference, arm, "schedule.", "optim.batch_size", "data.")
        detail = f"{detail} against {count_of(epochs[0], 'epoch')}, {count_of(steps[0], 'step')}, {why}"
    return Check("schedule", equal, detail)


def _few(names: list[str]) -> str:
    return ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")


CHECKS: tuple[Callable[[ArmSnapshot, ArmSnapshot], Check], ...] = (
    _training_samples,
    _validation_samples,
    _same_order,
    _batches,
    _draws,
    _same_settings("augmentation", "augment.", "loss.smoothing"),
    _same_settings("size and normalisation of the inputs", "data.img_size", "data.mean", "data.std"),
    _weights,
    _schedule,
    _same_settings("optimizer", "optim.", detail=lambda c: f"{c.optim.name}, learning rate {c.optim.lr:g}"),
    _same_settings(
        "precision and compilation",
        "engine.precision",
        "engine.compile",
        "engine.graphs",
        detail=lambda c: c.engine.precision,
    ),
)
