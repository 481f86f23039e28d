"""Facts that settings are decided from: the request, the dataset, the model, the machine and the time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

Fact = TypeVar("Fact")


@dataclass(frozen=True)
class Request:
    """A recipe and the settings that the user gave."""

    recipe: str  # name or file
    values: Mapping[str, Any]  # its settings
    variants: Mapping[str, Any]  # patterns of model names with settings
    why: str  # this recipe
    given: Mapping[str, Any]  # settings by dotted name
    model: str  # full name of the model: the one given, else the checkpoint's, else the recipe's
    full_name: Callable[[str], str]  # of any model's name
    texts: tuple[str, ...]  # what the recipe's patterns of model names are held against
    trained: str | None = None  # model of the run whose weights are given, where no model is
    bare: bool = False  # leave the recipe's own plug-ins out


@dataclass(frozen=True)
class SetFacts:
    """A dataset."""

    task: str  # that its layout is for, or that was named
    samples: int | None = None  # for training; None: unknown
    side: int | None = None  # typical shorter side of images in files
    longer: int | None = None  # typical longer side; asked only where the task has a largest side
    thinnest: float | None = None  # pixels across the thinnest class, or a side of the smallest objects; likewise
    longest: int | None = None  # most pixels of a longer side, where the shorter one is resized to the image size
    array: tuple[int, int] | None = None  # side and channels of images in memory
    measured: tuple[list[float], list[float]] | None = None  # mean and deviation of these
    largest: int | None = None  # side up to which the task trains whole images at their own size
    decoded: tuple[float, float] | None = None  # bytes of training and validation images in memory; None: unknown


@dataclass(frozen=True)
class Weights:
    """What weights were trained with, and go on with best: size and channels of images, their scale, the geometry."""

    img_size: int
    in_chans: int
    mean: list[float]
    std: list[float]
    options: dict[str, Any]  # of the model's constructor


@dataclass(frozen=True)
class ModelFacts:
    """A model."""

    name: str  # in full
    requested: str = ""  # the name that was given for it
    side: int | None = 224  # of the images it is made for; None: it reads none
    mean: list[float] = field(default_factory=lambda: [0.485, 0.456, 0.406])
    std: list[float] = field(default_factory=lambda: [0.229, 0.224, 0.225])
    above_small: Mapping[str, Any] = field(default_factory=dict)  # options it asks for where images are not small
    weights: Weights | None = None  # that it starts from


@dataclass(frozen=True)
class MachineFacts:
    """A machine."""

    gpu: bool
    cores: int
    processes: int = 1  # that train together
    kernels: str = ""  # that the environment names, see `saccade kernels`

    @property
    def kind(self) -> str:
        """What trains: GPU or CPU."""
        return "GPU" if self.gpu else "CPU"


@dataclass(frozen=True)
class TimeFacts:
    """What was timed, and what fits."""

    limit: str  # the time, in words
    epochs: int  # that fit
    pace: str  # how long they take and how that is known, in words
    options: Mapping[str, Any] | None = None  # of a smaller model, where the one asked for is too slow
    img_size: int | None = None  # likewise smaller images
    slow: str = ""  # what was too slow, in words


@dataclass(frozen=True)
class TriedRate:
    """A learning rate that short trainings were best with."""

    lr: float
    batch_size: int
    why: str


@dataclass(frozen=True)
class ComparedFacts:
    """A run's place in a comparison; None: not decided yet."""

    seed: int | None = None
    fold: int | None = None  # that validates
    repeat: int = 0  # which cut into folds
    every: int | None = None  # epochs between validations
    validated: int = 0  # samples in each
    tuned: Mapping[str, Any] | None = None  # the best settings of short trials
    longest: int | None = None  # epochs of the longest arm
    epochs: int | None = None  # of this run, where runs took longer than planned


@dataclass(frozen=True)
class Facts:
    """All facts that are known; rules whose facts are not known decide nothing."""

    request: Request | None = None
    tried: TriedRate | None = None
    time: TimeFacts | None = None
    data: SetFacts | None = None
    model: ModelFacts | None = None
    machine: MachineFacts | None = None
    compared: ComparedFacts | None = None
    resumed: bool = False  # it keeps its model, even if its initial weights now describe another one
    filled: bool = False  # the settings were resolved before


def known(fact: Fact | None) -> Fact:
    """Return a fact that a rule needs, see `Rule.needs`."""
    assert fact is not None
    return fact
