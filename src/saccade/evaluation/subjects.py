"""What is evaluated: models opened by a word, and the pictures they are all asked about."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..building import Shape, open_device, open_model
from ..data.augment import Normalize
from ..data.held_out import identity
from ..data.loader import Framing
from ..data.open import open_configured, open_data
from ..data.source import Source
from ..runs import Run
from ..targets import find_target
from ..tasks.classify import read_logits


class EvaluationError(ValueError):
    """What was given cannot be evaluated, and why."""


@dataclass
class Subject:
    """A model under evaluation.

    Args:
        name: what it is called in the result; no two are the same.
        target: what it was opened by.
        model: put into evaluation mode.
        shape: its classes and pictures.
        run: the run it comes from, if it does.
        device: where it is.
    """

    name: str
    target: str
    model: nn.Module
    shape: Shape
    run: Run | None
    device: torch.device
    normalize: Normalize = field(init=False)

    def __post_init__(self) -> None:
        self.model = self.model.to(self.device).eval().requires_grad_(False)  # attacks need only the pictures' gradient
        self.normalize = Normalize(self.shape.mean, self.shape.std, device=self.device)

    def ask(self, pictures: Tensor) -> Tensor:
        """Return logits, B, K float32, of pictures, B, C, H, W: bytes, or numbers from 0 to 1."""
        logits = read_logits(self.model(self.normalize(pictures.to(self.device)))).float()
        if logits.ndim != 2 or logits.shape[1] != len(self.shape.classes):
            raise EvaluationError(
                f"{self.name} answers with a tensor of shape {tuple(logits.shape)} and has {len(self.shape.classes)} "
                "classes; a classifier answers with one number a class"
            )
        if not logits.isfinite().all():
            raise EvaluationError(f"{self.name} answers with what is no number; its training diverged")
        return logits

    @property
    def framing(self) -> Framing:
        """How it sees pictures."""
        return self.shape.framing


@dataclass(frozen=True)
class Pictures:
    """The pictures every model is asked about.

    Args:
        source: the whole set.
        name: of the set.
        fingerprint: of the set.
        notes: remarks for the reader.
        places: of those asked about in the set; None for all.
    """

    source: Source
    name: str
    fingerprint: str
    notes: tuple[str, ...]
    places: np.ndarray | None = None

    def chosen(self) -> Source:
        """Return the source of the pictures asked about."""
        return self.source if self.places is None else self.source.subset(self.places)


def open_subjects(targets: Sequence[str | Path], *, device: str) -> list[Subject]:
    """Open models by run folder, weights or timm name.

    Args:
        targets: one or more.
        device: where they go.
    """
    if not targets:
        raise EvaluationError("nothing was given to evaluate; give a run's folder, its weights or a timm model's name")
    known = [find_target(target) for target in targets]  # all of them before the first is opened
    place = open_device(device)
    found: list[Subject] = []
    for target, opened in zip(targets, known, strict=True):
        model, shape = open_model(opened)
        path = Path(target).expanduser()
        folder = path if path.is_dir() else path.parent if path.is_file() else None
        run = Run(folder) if folder is not None and (folder / "config.yaml").is_file() else None
        base = (folder.resolve().name or str(target)) if folder is not None else opened
        name, number = base, 2
        while name in {subject.name for subject in found}:
            name, number = f"{base} ({number})", number + 1
        found.append(Subject(name, str(target), model, shape, run, place))
    return found


def require_same_classes(subjects: Sequence[Subject]) -> None:
    """Refuse runs that answer with other classes than the first."""
    first = subjects[0]
    for other in subjects[1:]:
        ours, theirs = first.shape.classes, other.shape.classes
        if len(ours) != len(theirs):
            raise EvaluationError(
                f"{first.name} has {len(ours)} classes and {other.name} has {len(theirs)}; runs side by side answer "
                "the same question: evaluate them one by one, or give runs trained on the same classes"
            )
        if set(ours) != set(theirs):
            strange = sorted(set(theirs) - set(ours))
            raise EvaluationError(
                f"{other.name} has classes that {first.name} lacks, such as {strange[0]!r}; evaluate them one by one"
            )


def open_pictures(subjects: Sequence[Subject], data: str | None) -> Pictures:
    """Open the pictures: what was given, or the validation set that the runs were trained with.

    Args:
        subjects: the models.
        data: pictures as `saccade train` takes them; their validation part if they have one, else all of them.
    """
    if data is not None:
        opened = open_data(str(data), val=str(data))
        return Pictures(opened.val, opened.name, opened.val.fingerprint(), opened.notes)
    own = [_own_pictures(subject) for subject in subjects]
    for subject, pictures in zip(subjects[1:], own[1:], strict=True):
        if pictures.fingerprint != own[0].fingerprint:
            raise EvaluationError(
                f"{subjects[0].name} was validated on {len(own[0].source)} pictures of {own[0].name}, {subject.name} "
                f"on {len(pictures.source)} others of {pictures.name}; give pictures for all of them by --data"
            )
    notes = dict.fromkeys(note for pictures in own for note in pictures.notes)
    return Pictures(own[0].source, own[0].name, own[0].fingerprint, tuple(notes))


def _own_pictures(subject: Subject) -> Pictures:
    if subject.run is None:
        raise EvaluationError(
            f"{subject.target} is not a run, so it has no validation pictures of its own; give some by --data"
        )
    data = open_configured(subject.run.config().data)
    fingerprint, notes = data.val.fingerprint(), list(data.notes)
    stored = subject.run.summary().get("validation", {}).get("fingerprint") if subject.run.finished() else None
    if stored is None:
        notes.append(f"{subject.name} does not say which pictures it was validated on")
    elif stored != fingerprint:
        notes.append(
            f"{subject.name} was validated on other pictures than {data.name} now gives (fingerprint {stored[:12]} "
            f"against {fingerprint[:12]}); some of these may have been trained on"
        )
    return Pictures(data.val, data.name, fingerprint, tuple(notes))


def choose(source: Source, places: np.ndarray, *, limit: int | None, seed: int) -> np.ndarray:
    """Return places of at most `limit` pictures, as evenly over the classes as they allow, chosen by name and seed.

    Args:
        source: the pictures.
        places: to choose from.
        limit: how many; None for all.
        seed: of the choice.
    """
    if limit is None or limit >= len(places):
        return places
    if limit < 1:
        raise EvaluationError(f"limit {limit} was given; give at least 1, or none for all pictures")
    keys = np.array([identity(source.name(int(place)), seed) for place in places], dtype=np.int64)
    labels = source.labels[places]
    order = np.lexsort((keys, labels))
    rank = np.empty(len(places), dtype=np.int64)  # of a picture among those of its class
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    rank[order] = np.arange(len(places)) - np.repeat(starts, np.diff([*starts, len(places)]))
    return np.sort(places[np.lexsort((keys, rank))[:limit]])
