"""Warnings about badly trained arms."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...runs.run import Run
from ...settings import ConfigError, ModelConfig, TrainConfig, overlay
from ...settings.families import family_of
from ...tasks.metric import MetricSpec
from ...training.parallel import local_device
from ...training.trial import SEED, OutOfTime, Trial, TrialSetup, prepare_ground
from ...tuning.store import Store
from ..plan.plan import Note
from ..plan.snapshot import DataCache

STEEP = 0.08  # share of the loss decrease in the last fifth of the epochs; converged runs have 0.03 to 0.055
MIN_EPOCHS = 5  # least epochs for this check
NEAR = 0.05  # arms below this fraction between chance and perfect get a warning
LONG = 20  # least epochs for probe trainings
PEER, LESS = "resnet18", 0.25  # model of the peer probe; factor of the lower learning rate
POINTS = 0.03  # advantage of the ResNet, trained for a tenth of the epochs, that is reported


def warn_of_losses(runs: Mapping[str, Mapping[int, Path]]) -> list[Note]:
    """Return a note on every arm whose loss was still decreasing steeply at the end."""
    notes = []
    for name, found in runs.items():
        falls = [fall for path in found.values() if (fall := _late_fall_of(Run(path))) is not None]
        if falls and sum(falls) / len(falls) > STEEP:
            share = sum(falls) / len(falls)
            message = (
                f"{name} looks under-trained: {share:.0%} of its loss decrease came in the last fifth of the epochs"
            )
            notes.append(Note("undertrained", message, "train for more epochs before judging it", arm=name))
    return notes


def _late_fall_of(run: Run) -> float | None:
    """Return the late decrease of a run's loss, over epochs with augmentation only."""
    records = run.metrics()
    try:
        config = run.config()
    except ConfigError:  # a run of another version, whose metrics can be read
        return late_fall(records)
    augmented = records[: max(config.schedule.epochs - config.augment.off_epochs, 0)]
    return late_fall(augmented if len(augmented) >= MIN_EPOCHS else records)


def late_fall(records: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the share of the loss decrease in the last fifth of a run; None if there are too few epochs."""
    losses = [float(record["train_loss"]) for record in records if "train_loss" in record]
    if len(losses) < MIN_EPOCHS:
        return None
    part = len(losses) // 5
    before, after = sum(losses[-2 * part : -part]) / part, sum(losses[-part:]) / part
    whole = losses[0] - losses[-1]
    return (before - after) / whole if whole > 0 and math.isfinite(whole) else None


def warn_of_chance(scores: Mapping[str, float | None], metric: MetricSpec | None) -> list[Note]:
    """Return a note on every arm near chance level."""
    if metric is None or metric.chance is None or not metric.share or not metric.larger_is_better:
        return []
    least = metric.chance + NEAR * (1 - metric.chance)
    return [
        Note(
            "undertrained",
            f"{name} has hardly learned: {metric.words} {metric.show(score)}, chance level "
            f"{metric.show(metric.chance)}",
            "find settings with saccade tune, or compare with --tune",
            arm=name,
        )
        for name, score in scores.items()
        if score is not None and score < least
    ]


class Probes:
    """Probe trainings on training samples, stored with a comparison, that detect badly trained arms."""

    def __init__(self, folder: Path, cache: DataCache, until: float | None = None) -> None:
        self.store, self.cache, self.until = Store(folder / "probes"), cache, until

    def warn(
        self, configs: Mapping[str, TrainConfig], scores: Mapping[str, float | None], *, tuned: bool
    ) -> list[Note]:
        """Return notes on arms that a lower learning rate, or a small ResNet, outperforms."""
        long = {name: config for name, config in configs.items() if config.schedule.epochs >= LONG}
        usual = {
            name: config
            for name, config in long.items()
            if not self.cache.open(config)[0].kind.hosts.builds(config.model.name)
        }
        if not usual:
            return []
        self.store.begin({})
        self.store.decide({})
        notes: list[Note] = []
        try:
            for name, config in long.items():
                notes += [] if tuned else self._by_rate(name, config)
            notes += self._by_peer(usual, scores)
        except OutOfTime:
            pass  # no time left in the budget
        return notes

    def _by_rate(self, name: str, config: TrainConfig) -> list[Note]:
        epochs = max(config.schedule.epochs // 20, 2)
        other = float(f"{config.optim.lr * LESS:.3g}")
        (own, ground), (less, _) = (
            self._run(overlay(config, {"optim.lr": rate}), epochs) for rate in (config.optim.lr, other)
        )
        metric = ground.metric
        if less.score is None or (own.score is not None and not _better(less.score, own.score, metric, ground)):
            return []
        had = "failed" if own.score is None else metric.show(own.score)
        message = (
            f"{name} looks badly trained: after {epochs} epochs on a subset of the training samples, learning rate "
            f"{other:g} scores {metric.show(less.score)}; its own learning rate, {config.optim.lr:g}: {had}"
        )
        return [Note("undertrained", message, "compare with --tune", arm=name)]

    def _by_peer(self, configs: Mapping[str, TrainConfig], scores: Mapping[str, float | None]) -> list[Note]:
        config = next(iter(configs.values()))
        epochs = max(config.schedule.epochs // 10, 2)
        peer = replace(config, model=ModelConfig(name=PEER, head=config.model.head))
        if (family := family_of(config.recipe, PEER)) is not None:
            peer = overlay(peer, family.settings)
        trial, ground = self._run(peer, epochs)
        metric, notes = ground.metric, []
        for name in configs:
            score = scores.get(name)
            if trial.score is None or score is None or not metric.share or not metric.larger_is_better:
                continue
            if trial.score - score > POINTS:
                message = (
                    f"{name} is far below a small ResNet: {PEER} trained for {epochs} epochs on a subset of the "
                    f"training samples scores {metric.show(trial.score)} on held-out ones, {name} "
                    f"{metric.show(score)}"
                )
                notes.append(Note("undertrained", message, "compare with --tune, or train for more epochs", arm=name))
        return notes

    def _run(self, config: TrainConfig, epochs: int) -> tuple[Trial, TrialSetup]:
        if self.until is not None and time.monotonic() > self.until:
            raise OutOfTime
        device = local_device(config.engine.device)
        choice, data = self.cache.open(config)
        resolved, ground = prepare_ground(config, choice, data, device)
        short = {"seed": SEED, "schedule.epochs": epochs, "schedule.patience": None, "keep.evaluate_every": epochs}
        tried = overlay(resolved, {**short, "engine.compile": False})
        about = {"model": tried.model.name, "lr": tried.optim.lr, "epochs": epochs}
        return self.store.trial(tried, ground, about, device=device, until=self.until), ground


def _better(score: float, than: float, metric: MetricSpec, ground: TrialSetup) -> bool:
    """Whether a score is better by more than sampling error."""
    gain = (score - than) * (1 if metric.larger_is_better else -1)
    if not metric.share:
        return gain > 0.05 * abs(than)
    middle = min(max((score + than) / 2, 0.0), 1.0)
    return gain > max(3 * math.sqrt(2 * middle * (1 - middle) / len(ground.data.val)), 0.01)
