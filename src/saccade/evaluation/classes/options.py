"""What may be asked besides of a model that answers with a class."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .attacks import Attack
from .labels import LabelFile, read_labels, read_subset


@dataclass(frozen=True)
class ClassOptions:
    """Labels, classes and attacks."""

    labels: LabelFile | None = None  # what a user's file says about labels
    subset: Sequence[str] | None = None  # classes the answer is chosen from
    attacks: tuple[Attack, ...] = ()  # to try on the images


def read_options(
    *, labels: str | Path | None, subset: str | Path | None, epsilons: Sequence[float], steps: int, restarts: int
) -> ClassOptions:
    """Return the options that `evaluate` was given, their files read."""
    attacks = [Attack(epsilon=float(e), steps=steps, restarts=restarts) for e in dict.fromkeys(epsilons)]
    names = read_subset(subset) if subset is not None else None
    return ClassOptions(read_labels(labels) if labels is not None else None, names, tuple(attacks))
