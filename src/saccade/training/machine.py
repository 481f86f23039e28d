"""Fit a run to the machine and a time budget: epochs, and by default also model and image size."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from ..settings.sizes import STEP, resized_side, side_for, side_of_whole
from ..support.durations import BudgetError, say_duration
from ..support.spawning import cores
from ..support.wording import count_of
from ..tasks import Task
from ..tasks.opening import TaskChoice
from .defaults import CIFAR, MAX_CIFAR_SIDE, is_like_cifar, typical_side, typical_sides
from .pace import Pace, measure_pace
from .parallel import World
from .recipes import configure

USUAL = 15 * 60.0  # time budget in seconds of a run on a CPU with default settings
LEAST_USUAL, EACH = 75.0, 1.0  # of a dense task instead: least seconds, and seconds for each training image
ENOUGH = 30  # least epochs for the larger of two models; else the smaller one is used
MIN_EPOCHS = 10  # least epochs of a run without a given time
MIN_STEPS = 250  # likewise steps of a dense task, which small sets need more epochs for
SIDES = (64, 32)  # image sizes tried where even the smaller model is slow
SHARES, LEAST_SIDE = (0.75, 0.5), 64  # of the images' own size, tried in a dense task; and the least of these sizes
MARGIN = 1.15  # factor on measured times, for other programs' load
AFTERWARDS = 5.0  # least seconds kept for scores, the report and exit
CLOSING = 0.1  # largest share of the time kept for them
TIMING = 0.2  # share of the time after which only one more candidate is timed
DECIDING = ("model.", "schedule.", "optim.", "data.img_size")  # settings that determine a run's duration


@dataclass(frozen=True)
class BudgetFitter:
    """Fits a run to a time budget."""

    seconds: float | None = None  # time budget; None: the default one, if `free`
    free: bool = False  # whether model and image size may be chosen, too
    given: Mapping[str, Any] = field(default_factory=dict)  # settings given by the user, by dotted name
    start: float = field(default_factory=lambda: monotonic())  # start of the budget, by `time.monotonic`
    # when the run was requested; the time spent before, e.g. on imports, estimates that needed to exit
    asked: float = field(default_factory=lambda: monotonic())
    say: Callable[[str], None] = lambda _: None  # prints progress before the run's own output
    tells: bool = False  # whether to say what a run without images will take on a CPU, even where nothing is fitted
    timed: list[Pace] = field(default_factory=list)  # measured pace, after fitting

    @property
    def deadline(self) -> float | None:
        """Deadline of the last epoch, by `time.monotonic`; None without a budget."""
        return None if self.seconds is None else self.start + self.seconds - self.afterwards

    @property
    def afterwards(self) -> float:
        """Seconds kept for the end of the run: on a busy machine as many as the start took."""
        return max(AFTERWARDS, min(self.asked - self.start, CLOSING * (self.seconds or USUAL)))

    @property
    def validation(self) -> float:
        """Duration of a validation in steps, after fitting."""
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
        """Return settings that fit the budget, and notes on them; all processes call this.

        Args:
            record: collects decisions.
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
            slow = device.type == "cpu" and world.size == 1 and choice.kind.reader.reads != "image"
            return config, [self._foretold(config, choice, data, device)] if slow and self.tells else []
        dense = is_dense(config, choice)
        asked, seconds = config, self.seconds or usual_seconds(config, choice, data)
        if world.is_main:
            self.say("timing a few steps to estimate the duration of the run ...")

        def try_one(candidate: TrainConfig) -> Tried:
            pace = world.gather(measure_pace(candidate, choice, data, device, parts=world.size))[0]
            pace = replace(pace, step=MARGIN * pace.step, validation=MARGIN * pace.validation)
            spent = monotonic() - self.start if self.seconds is not None or dense else 0.0
            steps = candidate.schedule.steps
            most = candidate.schedule.epochs if steps is None else -(-steps // pace.steps)
            fitting = world.gather(pace.most_epochs(seconds - self.afterwards - spent, most))[0]
            return Tried(candidate, pace, fitting, most)

        def is_late() -> bool:
            return bool(world.gather(monotonic() - self.start > TIMING * seconds)[0])

        tried = try_smaller(smaller_settings(config, choice, data, gpu=False) if free else [config], try_one, is_late)
        pace, epochs, most = tried[-1].pace, tried[-1].epochs, tried[-1].most
        self.timed.append(pace)
        if self.seconds is None:
            fewest = max(MIN_EPOCHS, -(-MIN_STEPS // pace.steps)) if dense else MIN_EPOCHS
            epochs = max(epochs, min(fewest, most))
        if epochs < 1:
            raise BudgetError(
                f"time={say_duration(seconds)} was given, but timing a few steps took "
                f"{say_duration(monotonic() - self.start)} and one epoch takes about {say_duration(pace.seconds(1))}; "
                "give more time, a smaller model or --img-size, or fewer images (--set data.train_limit=N)"
            )
        facts = time_facts(tried, seconds, epochs=epochs, took=_took(pace, epochs))
        config = decide(asked, Facts(time=facts), TIMED, record=record)
        to = f"{say_duration(seconds)}: " if self.seconds is not None else _machine(config, data)
        return config, [_said(asked, config, pace, most, to=to)]

    def _foretold(self, config: TrainConfig, choice: TaskChoice, data: Data, device: torch.device) -> str:
        """Return the model's size, and how long a run takes."""
        self.say("timing a few steps to estimate the duration of the run ...")
        pace = measure_pace(config, choice, data, device)
        epochs = config.schedule.epochs if config.schedule.steps is None else -(-config.schedule.steps // pace.steps)
        chosen = "schedule.epochs" in self.given or "schedule.steps" in self.given
        return (
            f"{config.model.name}: {pace.parameters:,} parameters; {count_of(epochs, 'epoch')} x "
            f"{count_of(pace.steps, 'step')} of batch size {config.optim.batch_size}, {_took(pace, epochs)}; "
            f"{'' if chosen else 'choose another number with --epochs; '}--time 10m fits the run into ten minutes"
        )

    def _are_many_small(self, config: TrainConfig, choice: TaskChoice, data: Data) -> bool:
        """Whether settings are defaults, and the images are many and small, for which there is a separate recipe."""
        usual = self.free and choice.kind.name == "classify" and config.recipe == Task.recipe
        return usual and is_like_cifar(data.train, config.data.train_limit)


@dataclass(frozen=True)
class Tried:
    """Settings that were timed."""

    config: TrainConfig  # the timed settings
    pace: Pace  # measured pace
    epochs: int  # epochs that fit
    most: int  # requested epochs

    @property
    def enough(self) -> bool:
        """Whether enough epochs fit."""
        return self.epochs >= min(ENOUGH, self.most)


def is_dense(config: TrainConfig, choice: TaskChoice) -> bool:
    """Whether settings are a dense task's defaults: whole images, and an answer for every part of them."""
    return choice.kind.largest is not None and config.recipe == choice.kind.recipe


def usual_seconds(config: TrainConfig, choice: TaskChoice, data: Data) -> float:
    """Return the time budget of a run on a CPU with default settings: of a dense task, by its number of images."""
    samples = (
        None if isinstance(data.train, Stream) else min(len(data.train), config.data.train_limit or len(data.train))
    )
    if samples is None or not is_dense(config, choice):
        return USUAL
    return min(max(EACH * samples, LEAST_USUAL), USUAL)


def try_smaller(
    candidates: Iterable[TrainConfig], try_one: Callable[[TrainConfig], Tried], is_late: Callable[[], bool]
) -> list[Tried]:
    """Time settings, each with less to compute than the one before, until enough epochs fit; the last is taken.

    What turns out slower by the epoch is left out: small steps can take a GPU as long as larger ones.

    Args:
        is_late: whether there is only time to try the fastest of those that are left.
    """
    left, tried = list(candidates), list[Tried]()
    while left:
        one = try_one(left.pop(0))
        if not tried or one.pace.step * one.pace.steps <= tried[-1].pace.step * tried[-1].pace.steps:
            tried.append(one)
        if tried[-1].enough:
            break
        left = left[-1:] if is_late() else left
    return tried


def time_facts(tried: Sequence[Tried], seconds: float, *, epochs: int, took: str, runs: str = "it") -> TimeFacts:
    """Return the facts by which settings are fitted to a time.

    Args:
        tried: the settings that were asked for, and smaller ones up to those that are taken.
        epochs: that fit.
        took: how long these take, in words.
        runs: that the time is for, in words.
    """
    asked, taken = tried[0].config, tried[-1].config
    return TimeFacts(
        limit=say_duration(seconds),
        epochs=epochs,
        pace=took,
        options=taken.model.options if taken.model.options != asked.model.options else None,
        img_size=taken.data.img_size if taken.data.img_size != asked.data.img_size else None,
        slow=f"{count_of(tried[0].epochs, 'epoch')} of {runs} fit into {say_duration(seconds)}, fewer than {ENOUGH}",
    )


def smaller_settings(config: TrainConfig, choice: TaskChoice, data: Data, *, gpu: bool) -> Iterator[TrainConfig]:
    """Yield settings in order of decreasing time: as given, with the model of `quick`, and at smaller sizes."""
    yield config
    dense = is_dense(config, choice)
    if (choice.kind.recipe != Task.recipe and not dense) or choice.kind.reader.reads != "image":
        return  # the recipe is for another kind of model
    config = overlay(config, {"model.options": read_recipe("quick")["model"]["options"]})  # the options of glnet_nano
    yield config
    if dense:
        yield from (overlay(config, {"data.img_size": side}) for side in smaller_sides(choice, data, gpu=gpu))
        return
    array = None if isinstance(data.train, Stream) else data.train.array()
    if array is None:
        usual = side_for(typical_side(data.train), MAX_CIFAR_SIDE)
        for side in (side for side in SIDES if side < usual):
            yield overlay(config, {"data.img_size": side})


def smaller_sides(choice: TaskChoice, data: Data, *, gpu: bool = False) -> Iterator[int]:
    """Yield sizes below that of whole images, the larger ones first; thin details ask for more of them."""
    sides, largest = typical_sides(data.train), choice.kind.largest
    assert largest is not None
    if sides is None or isinstance(data.train, Stream):
        return
    thinnest = (data.train.targets.thinnest(), None)
    own_side = resized_side(*sides, getattr(choice.options, "longest", None))
    most, *_ = own = [side_of_whole(own_side, pixels, largest=largest, gpu=gpu)[0] for pixels in thinnest]
    found = {int(side * share) // STEP * STEP for side in own for share in (1, *SHARES)}
    yield from sorted((side for side in found if LEAST_SIDE <= side < most), reverse=True)


def _said(requested: TrainConfig, config: TrainConfig, pace: Pace, most: int, *, to: str) -> str:
    """Return a note on what was chosen and how long it takes."""
    chosen, epochs = say_smaller(requested, config), config.schedule.epochs
    if epochs != most:
        chosen.append(f"{count_of(epochs, 'epoch')} instead of {most}")
    took = _took(pace, epochs)
    if not chosen:
        return f"{count_of(epochs, 'epoch')}, {took}"
    return f"fitted to {to}{', '.join(chosen)}, {took}; override with --time, --epochs, --model or --img-size"


def say_smaller(requested: TrainConfig, config: TrainConfig) -> list[str]:
    """Describe what is smaller than requested."""
    chosen = []
    if config.model.options != requested.model.options:
        chosen.append(f"the smaller {config.model.name} of the recipe quick")
    if config.data.img_size != requested.data.img_size:
        chosen.append(f"input resolution {config.data.img_size}")
    return chosen


def _took(pace: Pace, epochs: int) -> str:
    return f"about {say_duration(pace.seconds(epochs))} ({pace.how})"


def _machine(config: TrainConfig, data: Data) -> str:
    samples = data.train.length if isinstance(data.train, Stream) else len(data.train)
    samples = min(samples, config.data.train_limit or samples) if samples is not None else None
    images = "" if samples is None else f" and {count_of(samples, 'training image')}"
    return f"{count_of(cores(), 'CPU core')}{images}: "


def sets_run_length(given: dict[str, Any]) -> bool:
    """Whether any of the settings, by dotted name, determines a run's duration; plug-ins do not count."""
    return any(name.startswith(DECIDING) and name != "model.plugins" for name in given)
