"""Fit a run to the machine and to a time: model and size where nothing was named, and epochs, before it begins."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import torch

from ..data.open import Data
from ..data.source import Stream
from ..settings import TrainConfig, overlay
from ..settings.decisions import Decision, decide
from ..settings.facts import Facts, TimeFacts
from ..settings.fitting import TIMED
from ..settings.recipes import read_recipe
from ..support.durations import BudgetError, say_duration
from ..support.spawning import cores
from ..support.wording import count_of
from ..tasks import Task
from ..tasks.opening import TaskChoice
from .defaults import CIFAR, is_like_cifar
from .pace import Pace, measure_pace
from .parallel import World
from .recipes import configure

USUAL = 15 * 60.0  # seconds that a run on a CPU is fitted to where nothing was named
ENOUGH = 30  # epochs that the larger of two models has to come to, else the smaller one is taken
FEWEST = 10  # epochs that a run gets where no time was given, however long they take
SIDES = (64, 32)  # that images are brought to where even the smaller model is slow
MARGIN = 1.15  # of what was timed: other programs take their part
AFTERWARDS = 5.0  # seconds for scores, the report and the end of the process, at least
CLOSING = 0.1  # of the time, that is kept for them at most
TIMING = 0.2  # of the time, after which no more than one further candidate is timed
DECIDING = ("model.", "schedule.", "optim.", "data.img_size")  # names of settings that decide how long


@dataclass(frozen=True)
class Fitting:
    """What a run is fitted to."""

    seconds: float | None = None  # that it may take; None leaves that to us, where `free`
    free: bool = False  # nothing was named that decides how long it takes, so that model and size may be chosen, too
    given: Mapping[str, Any] = field(default_factory=dict)  # settings by dotted name that were named
    begun: float = field(default_factory=lambda: monotonic())  # when its time began, by `time.monotonic`
    # when it was asked for; what went by before, such as imports, tells how long this machine takes to close
    asked: float = field(default_factory=lambda: monotonic())
    say: Callable[[str], None] = lambda _: None  # is told what is being done before the run speaks
    timed: list[Pace] = field(default_factory=list)  # what the run takes, once it was fitted

    @property
    def deadline(self) -> float | None:
        """When the last epoch has to have ended, by `time.monotonic`; None without a time."""
        return None if self.seconds is None else self.begun + self.seconds - self.afterwards

    @property
    def afterwards(self) -> float:
        """Seconds that are kept for what comes after the last epoch: as many as the start took, on a busy machine."""
        return max(AFTERWARDS, min(self.asked - self.begun, CLOSING * (self.seconds or USUAL)))

    @property
    def validation(self) -> float:
        """How many steps a validation takes as long as, once the run was fitted."""
        return self.timed[-1].validation / max(self.timed[-1].step, 1e-9) if self.timed else 0.0

    def fit(
        self,
        config: TrainConfig,
        choice: TaskChoice,
        data: Data,
        world: World,
        device: torch.device,
        *,
        record: list[Decision] | None = None,
    ) -> tuple[TrainConfig, list[str]]:
        """Return the settings that fit, and what there is to say about them; all processes call this.

        Args:
            record: who decided what so far; takes what is decided here.
        """
        free = self.free and device.type == "cpu" and world.size == 1
        if device.type == "cuda" and self._are_many_small(config, choice, data):
            decided: list[Decision] = []
            config = configure(CIFAR, self.given, why="many small images, and a GPU", record=decided)
            if record is not None:
                record[:] = decided
            if world.is_main:
                self.say(f"many small images: using the recipe {CIFAR} (override with --recipe {Task.recipe})")
        if self.seconds is None and not free:
            return config, []
        asked, seconds = config, self.seconds or USUAL
        if world.is_main:
            self.say("timing a few steps to estimate the duration of the run ...")
        candidates = list(_smaller(config, choice, data)) if free else [config]
        reached: list[int] = []  # epochs, by the candidates so far
        while candidates:
            candidate = candidates.pop(0)
            pace = world.gather(measure_pace(candidate, choice, data, device, parts=world.size))[0]
            pace = replace(pace, step=MARGIN * pace.step, validation=MARGIN * pace.validation)
            spent = monotonic() - self.begun if self.seconds is not None else 0.0
            steps = candidate.schedule.steps
            most = candidate.schedule.epochs if steps is None else -(-steps // pace.steps)
            epochs = world.gather(pace.most_epochs(seconds - self.afterwards - spent, most))[0]
            config = candidate
            reached.append(epochs)
            if epochs >= min(ENOUGH, most):
                break
            if world.gather(monotonic() - self.begun > TIMING * seconds)[0]:
                candidates = candidates[-1:]  # there is time to try the fastest alone
        self.timed.append(pace)
        if self.seconds is None:
            epochs = max(epochs, min(FEWEST, most))
        if epochs < 1:
            raise BudgetError(
                f"time={say_duration(seconds)} was given, but timing a few steps took {say_duration(spent)} and one "
                f"epoch takes about {say_duration(pace.seconds(1))}; "
                "give more time, a smaller model or --img-size, or fewer images (--set data.train_limit=N)"
            )
        facts = TimeFacts(
            limit=say_duration(seconds),
            epochs=epochs,
            pace=_took(pace, epochs),
            options=config.model.options if config.model.options != asked.model.options else None,
            img_size=config.data.img_size if config.data.img_size != asked.data.img_size else None,
            slow=f"{count_of(reached[0], 'epoch')} of it fit into {say_duration(seconds)}, fewer than {ENOUGH}",
        )
        config = decide(asked, Facts(time=facts), TIMED, record=record)
        to = f"{say_duration(seconds)}: " if self.seconds is not None else _machine(config, data)
        return config, [_said(asked, config, pace, most, to=to)]

    def _are_many_small(self, config: TrainConfig, choice: TaskChoice, data: Data) -> bool:
        """Whether nothing was named, and the images are like those that a recipe of their own was measured with."""
        usual = self.free and choice.kind.name == "classify" and config.recipe == Task.recipe
        return usual and is_like_cifar(data.train, config.data.train_limit)


def _smaller(config: TrainConfig, choice: TaskChoice, data: Data) -> Iterator[TrainConfig]:
    """Yield settings that take less and less time: as asked, with the model of `quick`, and at smaller sizes."""
    yield config
    if choice.kind.recipe != Task.recipe or choice.kind.reader.reads != "image":
        return  # the recipe is of another kind of model
    config = overlay(config, {"model.options": read_recipe("quick")["model"]["options"]})  # of the same glnet_nano
    yield config
    array = None if isinstance(data.train, Stream) else data.train.array()
    if array is None:
        for side in SIDES:
            yield overlay(config, {"data.img_size": side})


def _said(asked: TrainConfig, config: TrainConfig, pace: Pace, most: int, *, to: str) -> str:
    """Return what was chosen and how long it takes, in one line."""
    chosen = []
    if config.model.options != asked.model.options:
        chosen.append(f"the smaller {config.model.name} of the recipe quick")
    if config.data.img_size != asked.data.img_size:
        chosen.append(f"input resolution {config.data.img_size}")
    epochs = config.schedule.epochs
    if epochs != most:
        chosen.append(f"{count_of(epochs, 'epoch')} instead of {most}")
    took = _took(pace, epochs)
    if not chosen:
        return f"{count_of(epochs, 'epoch')}, {took}"
    return f"fitted to {to}{', '.join(chosen)}, {took}; override with --time, --epochs, --model or --img-size"


def _took(pace: Pace, epochs: int) -> str:
    return f"about {say_duration(pace.seconds(epochs))} ({pace.how})"


def _machine(config: TrainConfig, data: Data) -> str:
    samples = data.train.length if isinstance(data.train, Stream) else len(data.train)
    samples = min(samples, config.data.train_limit or samples) if samples is not None else None
    images = "" if samples is None else f" and {count_of(samples, 'training image')}"
    return f"{count_of(cores(), 'CPU core')}{images}: "


def decides_how_long(given: dict[str, Any]) -> bool:
    """Whether settings by dotted name have one that decides how long a run takes, other than its plug-ins."""
    return any(name.startswith(DECIDING) and name != "model.plugins" for name in given)
