"""Trials of settings: short trainings on one part of the training samples, evaluated on another."""

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..building.build import TEACHER_TASKS, build_model, build_task, parse_plugin
from ..data.open import Data
from ..plugins import PLUGINS
from ..runs.run import Run
from ..runs.state import list_states, load_state
from ..settings import TrainConfig, flatten, overlay
from ..settings.decisions import put
from ..settings.machine_rules import OF_MACHINE
from ..tasks.metric import MetricSpec
from ..tasks.opening import TaskChoice
from .console import Console
from .engine import free_memory, torch_settings
from .loop import Loop, TrainingError, Weights
from .parallel import Alone
from .resolve import resolve
from .setup import assemble, limit_samples

SHARE = 0.2  # share of the training samples for evaluation
SEED = 1_000_003  # separates trials' random numbers from those of runs


class OutOfTime(Exception):  # noqa: N818
    """A trial's time is over; its results so far are kept."""


@dataclass(frozen=True)
class Trial:
    """Result of a trial."""

    score: float | None  # primary metric on held-out training samples; None if the trial failed
    losses: tuple[float, ...] = ()  # training loss by epoch
    scores: tuple[tuple[int, float], ...] = ()  # epoch and score of every validation
    seconds: float = 0.0  # duration, including building and validation
    failed: str = ""  # reason for a missing score


@dataclass(frozen=True)
class TrialSetup:
    """Task, samples and metric shared by trials."""

    choice: TaskChoice  # the task
    data: Data  # two parts of the training samples; without validation samples
    metric: MetricSpec  # primary metric


def prepare_ground(
    config: TrainConfig,
    choice: TaskChoice,
    data: Data,
    device: torch.device,
    *,
    limit: int | None = None,
    seed: int = SEED,
    given: Iterable[str] = (),
) -> tuple[TrainConfig, TrialSetup]:
    """Return settings resolved for the whole dataset, and the parts of its training samples for trials.

    Args:
        limit: most samples to train with; None: all that are not held out.
        seed: random seed of the held-out samples.
        given: settings given by the user, by dotted name.
    """
    resolved, spec = resolve(config, choice, data, device, given=given)
    train = limit_samples(data.train, config.data.train_limit)
    kept, held, _ = train.hold_out(share=SHARE, seed=seed)
    if limit is not None:
        kept = limit_samples(kept, limit)
        held = limit_samples(held, max(limit // 4, 1))  # type: ignore[assignment]
    part = replace(data, train=kept, val=held, notes=())
    # Trials train on fewer samples.
    open_again: dict[str, Any] = {"data.train_limit": None, "data.resident": config.data.resident}
    for name in ("warmup", "warmup_steps"):  # cut by each trial's own epochs
        open_again[f"schedule.{name}"] = getattr(config.schedule, name)
    return overlay(resolved, open_again), TrialSetup(choice, part, choice.kind.metrics.primary_metric(spec))


def teacher_of(config: TrainConfig, choice: TaskChoice, data: Data, device: torch.device) -> dict[str, str]:
    """Return fingerprints of what trials learn from besides samples: a teacher or label maps, by description."""
    plugins = [PLUGINS[name] for name, _ in map(parse_plugin, config.model.plugins)]
    if not any(isinstance(one, type) and issubclass(one, TEACHER_TASKS) for one in plugins):
        return {}
    resolved, spec = resolve(config, choice, data, device)
    model: Any = build_model(resolved.model, spec, seed=config.seed)
    return build_task(model, choice, resolved.model, resolved.loss, spec, seed=config.seed).learns_from()


class Deadline(Console):
    """A silent console that ends a trial at a deadline, by `time.monotonic`."""

    def __init__(self, until: float | None) -> None:
        super().__init__(quiet=True)
        self.until = until

    def advance(self, totals: Tensor) -> None:
        """Raise `OutOfTime` after a step that ended past the deadline."""
        super().advance(totals)
        if self.until is not None and time.monotonic() > self.until:
            raise OutOfTime


class TrialLoop(Loop):
    """A loop that writes no weights, and no states at the first and the last step."""

    def save(self) -> None:
        """Save the state, except at the first and last step; non-finite weights are always refused."""
        if self.step and not self.ended():
            super().save()
        else:
            self._refuse_non_finite()

    def _keep_best(self) -> None:
        """Keep no weights."""

    def _write_weights(self, path: Path, kept: Weights) -> None:
        """Write nothing."""


def _is_trial(known: TrainConfig, config: TrainConfig) -> bool:
    """Whether settings of a trial that was stopped are those of this one; what the machine decides may differ."""
    ours = flatten(config)
    return put(known, {name: ours[name] for name in OF_MACHINE}) == config


def run_trial(
    config: TrainConfig,
    ground: TrialSetup,
    folder: Path,
    *,
    device: torch.device,
    until: float | None = None,
) -> Trial:
    """Train by settings, or resume a trial that was stopped; a failure of training is an answer as well.

    Args:
        config: resolved, as `prepare_ground` returned it, with what is tried laid over it.
        folder: of the trial's own, which holds its state until it ends.
        until: when to stop, on the monotonic clock: raises `OutOfTime`.
    """
    started = time.monotonic()
    config = overlay(config, {"keep.every_seconds": 10.0, "keep.states": 1, "keep.tensorboard": False})
    with torch_settings(config, device):
        config, spec = resolve(config, ground.choice, ground.data, device)
        parts = assemble(config, ground.choice, ground.data, spec, world=Alone(), device=device)
        run = Run(folder)
        resumed = run.settings.exists() and bool(list_states(run.states)) and _is_trial(run.config(), config)
        if not resumed:
            shutil.rmtree(folder, ignore_errors=True)
            run = Run.create(folder, config)
        loop = TrialLoop(config, run, parts, world=Alone(), device=device, console=Deadline(until))
        try:
            if resumed:
                loop.restore(load_state(run.states))
            loop.fit()
        except TrainingError as error:
            return _ended(run, ground.metric, started, failed=str(error).split(". ")[0])
        finally:
            loop.feed.close()
            parts.validation.close()
            del loop, parts
            free_memory()
    return _ended(run, ground.metric, started)


def _ended(run: Run, metric: MetricSpec, started: float, *, failed: str = "") -> Trial:
    records: list[dict[str, Any]] = run.metrics()
    name = f"val_{metric.name}"
    scores = tuple((record["epoch"], float(record[name])) for record in records if name in record)
    losses = tuple(float(record["train_loss"]) for record in records)
    score = None if failed or not scores else scores[-1][1]
    if score is not None and score != score:
        score, failed = None, f"its {metric.words} is not a number"
    return Trial(score, losses, scores, time.monotonic() - started, failed)
