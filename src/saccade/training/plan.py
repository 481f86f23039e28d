"""`saccade plan`: the settings, duration and memory of a training, and what decided them; nothing is trained."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..building.build import build_model
from ..data.source import Stream
from ..settings import TrainConfig
from ..settings.decisions import Decision, beside_recipe, decided_later, latest, say_decision
from ..settings.overrides import names_of
from ..settings.recipes import recipe_header
from ..support.durations import parse_duration, say_duration
from ..support.wording import count_of
from ..tasks.opening import open_samples
from .engine import torch_settings
from .fitting import has_known_lr
from .machine import BudgetFitter, sets_run_length
from .pace import Pace, measure_pace
from .parallel import World, local_device
from .recipes import SHORT_FLAGS, configure, gather_settings
from .resolve import resolve

STATES = {"sgd": 1, "nesterov": 1, "momentum": 1, "lion": 1}  # state tensors for each parameter; others have 2


@dataclass(frozen=True)
class Plan:
    """A planned training.

    Attributes:
        config: resolved settings.
        decisions: decisions on settings, in order.
        data: name of the dataset.
        samples: numbers of training and validation samples; None: unknown.
        parameters: parameters of the model.
        memory: bytes: on a GPU the peak of the timed steps, else weights, gradients, optimizer state and activations.
        device: description of the device.
        pace: duration of a step and of a validation.
        elsewhere: hardware and cost for which the recipe was measured, if it says so.
        notes: remarks that a run would print at its start.
    """

    config: TrainConfig
    decisions: tuple[Decision, ...]
    data: str
    samples: tuple[int | None, int]
    parameters: int
    memory: int
    device: str
    pace: Pace
    elsewhere: tuple[str, str] | None
    notes: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Estimated duration of the training on this machine."""
        return self.pace.seconds(self.config.schedule.epochs)

    def changed(self) -> list[Decision]:
        """Return the decisions that changed settings of the recipe, with the values before."""
        return beside_recipe(self.decisions, self.config)

    def explain(self, setting: str) -> Decision | None:
        """Return the decision on a setting, by its dotted name; None if it is the default."""
        return latest(self.decisions, self.config).get(setting)

    def __str__(self) -> str:
        config, (train, val) = self.config, self.samples
        steps = config.schedule.epochs * self.pace.steps
        counted = "an unknown number of" if train is None else f"{train:,}"
        peak = "peak of the timed steps" if self.device != "cpu" else "weights, gradients, optimizer state, activations"
        side = "" if config.data.img_size is None else f", input resolution {config.data.img_size}"
        rows = {
            "dataset": f"{self.data}: {counted} training and {val:,} validation samples",
            "task": str(config.task),
            "model": f"{config.model.name}, {self.parameters:,} parameters{side}",
            "length": f"{count_of(config.schedule.epochs, 'epoch')}, {count_of(steps, 'step')} of batch size "
            f"{config.optim.batch_size}",
            f"time on this machine ({self.device})": f"about {say_duration(self.seconds)} ({self.pace.how})",
            "memory": f"{max(self.memory / 2**20, 1):,.0f} MiB ({peak})",
            "kernels": ", ".join(self.pace.kernels) or "none",
        }
        if self.elsewhere is not None:
            rows["elsewhere"] = f"{self.elsewhere[0]}: {self.elsewhere[1]} (recipe {config.recipe})"
        lines = [f"{name + ':':<22} {text}" for name, text in rows.items()]
        lines += ["", f"settings that differ from the recipe {config.recipe}:"]
        lines += [f"  {say_decision(one)}" for one in self.changed()] or ["  none"]
        if later := decided_later(self.decisions, config):
            lines += ["", "decided when training starts:", *(f"  {say_decision(one)}" for one in later)]
        lines += ["", *self.notes] if self.notes else []
        return "\n".join(lines)


def plan(
    data: str | None = None,
    *,
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    time: str | float | None = None,
    **named: Any,
) -> Plan:
    """Plan a training: what `train` with the same arguments would do. A few steps are timed, and nothing is kept.

    Args:
        data: dataset, as for `train`.
        recipe: name or file.
        settings: settings by dotted name.
        time: time budget of the whole run.
        named: other arguments of `train` that are settings: `model`, `epochs`, `plugins`, ...
    """
    if unknown := named.keys() - SHORT_FLAGS.keys():
        raise TypeError(f"plan() takes no {', '.join(sorted(unknown))}; it takes {', '.join(SHORT_FLAGS)}")
    given = gather_settings(settings, data=data, **named)
    seconds = None if time is None else parse_duration(time, name="time")
    record: list[Decision] = []
    config = configure(recipe, given, record=record)
    notes = [] if has_known_lr(config, given) else [RATE_NOTE.format(model=config.model.name)]
    where = local_device(config.engine.device)
    with torch_settings(config, where):
        choice, samples = open_samples(config.task, config.data)
        resolve(config, choice, samples, where, given=names_of(given))  # refuse invalid settings before timing
        fitting = BudgetFitter(seconds, free=recipe is None and not sets_run_length(given), given=given)
        config, remarks = fitting.fit(config, choice, samples, World(), where, record=record)
        if where.type == "cuda":
            torch.cuda.reset_peak_memory_stats(where)
        pace = fitting.timed[-1] if fitting.timed else measure_pace(config, choice, samples, where)
        peak = torch.cuda.max_memory_allocated(where) if where.type == "cuda" else 0
        config, spec = resolve(config, choice, samples, where, given=names_of(given), record=record)
        parameters = sum(one.numel() for one in build_model(config.model, spec, seed=config.seed).parameters())
    counted = samples.train.length if isinstance(samples.train, Stream) else len(samples.train)
    kept = 2 + STATES.get(config.optim.name, 2)
    return Plan(
        config,
        tuple(record),
        samples.name,
        (min(counted, config.data.train_limit or counted) if counted is not None else None, len(samples.val)),
        parameters,
        peak or 4 * kept * parameters + pace.activations,
        torch.cuda.get_device_name(where) if where.type == "cuda" else where.type,
        pace,
        _elsewhere(config.recipe),
        (*notes, *samples.notes, *spec.notes, *remarks),
    )


RATE_NOTE = (
    "no defaults for models like {model}: `train` first tries five learning rates on a part of the training samples, "
    "for about a twentieth of the run"
)


def _elsewhere(recipe: str | None) -> tuple[str, str] | None:
    """Return hardware and cost from a recipe's header; None if it was not measured."""
    found = recipe_header(recipe) if recipe else {}
    if not re.search(r"\d", found.get("cost", "")) or "hardware" not in found:
        return None
    return found["hardware"], found["cost"]
