"""What two arms have in common: every line looked up in what training will use, and explained where it differs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..config import TrainConfig, flatten
from .arms import changed
from .snapshot import ArmSnapshot

LOOKED = 200_000  # places of an epoch whose draws are looked up


@dataclass(frozen=True)
class Check:
    """One thing that a comparison holds equal, or does not.

    Attributes:
        what: the thing.
        equal: whether it is the same in both arms.
        told: what is the same, or why it is not.
    """

    what: str
    equal: bool
    told: str

    def __str__(self) -> str:
        return f"{self.what}: {'equal' if self.equal else 'differs'}{', ' if self.told else ''}{self.told}"


def check_all(reference: ArmSnapshot, arm: ArmSnapshot) -> tuple[Check, ...]:
    """Return every check of an arm against the reference, for runs of one seed."""
    return tuple(check(reference, arm) for check in CHECKS)


def _because(reference: ArmSnapshot, arm: ArmSnapshot, *names: str) -> str:
    """Return which of these settings explain a difference; a name that ends with a dot stands for its group."""
    found = changed(reference.config, arm.config)
    told = [f"{n} = {b!r}, not {a!r}" for n, (a, b) in found.items() if n.startswith(names)]
    return f"because {'; '.join(told)}" if told else "and no setting explains it"


def _training_pictures(reference: ArmSnapshot, arm: ArmSnapshot) -> Check:
    equal = reference.train == arm.train
    told = f"{arm.train.count:,} pictures, fingerprint {arm.train.fingerprint[:12]}"
    if not equal:
        why = _because(reference, arm, "data.")
        told = f"{arm.train.count:,} pictures against {reference.train.count:,}, {why}"
    return Check("training pictures", equal, told)


def _validation_pictures(reference: ArmSnapshot, arm: ArmSnapshot) -> Check:
    equal = reference.val == arm.val
    told = f"{arm.val.count:,} pictures, fingerprint {arm.val.fingerprint[:12]}"
    return Check("validation pictures", equal, told if equal else _because(reference, arm, "data.", "seed"))


def _order(reference: ArmSnapshot, arm: ArmSnapshot) -> Check:
    names = ("data.", "augment.repeats", "seed", "optim.batch_size")
    if not reference.order or not arm.order:
        equal = reference.train == arm.train and reference.config.data.workers == arm.config.data.workers
        told = "a stream's is a function of seed, epoch and data.workers"
        return Check("order of the pictures", equal, told if equal else _because(reference, arm, *names))
    pairs = zip(reference.order, arm.order, strict=True)
    equal = all(torch.equal(a[: len(b)], b[: len(a)]) for a, b in pairs)
    told = f"looked up for {sum(len(x) for x in arm.order):,} places of {len(arm.order)} epochs"
    return Check("order of the pictures", equal, told if equal else _because(reference, arm, *names))


def _batches(reference: ArmSnapshot, arm: ArmSnapshot) -> Check:
    equal = (reference.batch_size, reference.steps) == (arm.batch_size, arm.steps)
    told = f"{arm.batch_size} pictures a step, {arm.steps:,} step{'' if arm.steps == 1 else 's'} an epoch"
    names = ("optim.batch_size", "data.")
    return Check("batches", equal, told if equal else f"{told}, {_because(reference, arm, *names)}")


def _draws(reference: ArmSnapshot, arm: ArmSnapshot) -> Check:
    """A picture's draws must not depend on where in the epoch it comes: they are compared picture by picture."""
    names = ("seed", "augment.repeats", "data.")
    if not reference.keys or not arm.keys:
        equal = reference.config.seed == arm.config.seed
        return Check(
            "augmentation draws", equal, "functions of seed, epoch and picture" if equal else "because of seed"
        )
    equal, shared = True, 0
    for epoch in range(len(arm.keys)):
        first, second = _drawn(reference, epoch), _drawn(arm, epoch)
        both = first.keys() & second.keys()
        shared += len(both)
        equal &= all(first[one] == second[one] for one in both) and bool(both)
        if reference.train == arm.train and len(first) == len(second):
            equal &= first.keys() == second.keys()
    told = f"looked up for {shared:,} pictures of {len(arm.keys)} epochs"
    return Check("augmentation draws", equal, told if equal else _because(reference, arm, *names))


def _drawn(snapshot: ArmSnapshot, epoch: int) -> dict[tuple[int, int], int]:
    index, copies, keys = (x[epoch][:LOOKED].tolist() for x in (snapshot.order, snapshot.copies, snapshot.keys))
    return dict(zip(zip(index, copies, strict=True), keys, strict=True))


def _same_settings(what: str, *names: str, told: Callable[[TrainConfig], str] = lambda _: "") -> Any:
    def check(reference: ArmSnapshot, arm: ArmSnapshot) -> Check:
        first, second = flatten(reference.config), flatten(arm.config)
        equal = all(first[name] == second[name] for name in first if name.startswith(names))
        return Check(what, equal, told(arm.config) if equal else _because(reference, arm, *names))

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
    told = f"all {len(shared):,} tensors"
    if differ or only_first or only_second:
        told = f"{len(shared) - len(differ):,} of {len(shared):,} shared tensors are equal"
        told += f"; {len(differ):,} begin with other values ({_few(differ)})" if differ else ""
        told += f"; {len(only_first):,} are in the reference alone ({_few(only_first)})" if only_first else ""
        told += f"; {len(only_second):,} in this arm alone ({_few(only_second)})" if only_second else ""
    return Check("initial weights", not (differ or only_first or only_second), told)


def _schedule(reference: ArmSnapshot, arm: ArmSnapshot) -> Check:
    epochs = [snapshot.config.schedule.epochs for snapshot in (reference, arm)]
    steps = [count * snapshot.steps for count, snapshot in zip(epochs, (reference, arm), strict=True)]
    equal = reference.config.schedule == arm.config.schedule and steps[0] == steps[1]
    told = f"{epochs[1]} epochs, {steps[1]:,} steps"
    if not equal:
        why = _because(reference, arm, "schedule.", "optim.batch_size", "data.")
        told = f"{told} against {epochs[0]} epochs, {steps[0]:,} steps, {why}"
    return Check("schedule", equal, told)


def _few(names: list[str]) -> str:
    return ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")


CHECKS: tuple[Callable[[ArmSnapshot, ArmSnapshot], Check], ...] = (
    _training_pictures,
    _validation_pictures,
    _order,
    _batches,
    _draws,
    _same_settings("augmentation", "augment.", "loss.smoothing"),
    _same_settings("size and normalisation of the images", "data.img_size", "data.mean", "data.std"),
    _weights,
    _schedule,
    _same_settings("optimizer", "optim.", told=lambda c: f"{c.optim.name}, learning rate {c.optim.lr:g}"),
    _same_settings(
        "precision and compilation",
        "engine.precision",
        "engine.compile",
        "engine.graphs",
        told=lambda c: c.engine.precision,
    ),
)
