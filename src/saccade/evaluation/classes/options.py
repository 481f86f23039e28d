"""Options for the evaluation of classifiers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .attacks import Attack
from .labels import LabelFile, read_labels, read_subset


@dataclass(frozen=True)
class ClassOptions:
    """Labels, classes and attacks."""

    labels: LabelFile | None = None  # a user's file of labels
    subset: Sequence[str] | None = None  # classes to choose from
    attacks: tuple[Attack, ...] = ()  # attacks to run


def read_options(
    *, labels: str | Path | None, subset: str | Path | None, epsilons: Sequence[float], steps: int, restarts: int
) -> ClassOptions:
    """Read the files of `evaluate`'s options."""
    attacks = [Attack(epsilon=float(e), steps=steps, restarts=restarts) for e in dict.fromkeys(epsilons)]
    names = read_subset(subset) if subset is not None else None
    return ClassOptions(read_labels(labels) if labels is not None else None, names, tuple(attacks))
