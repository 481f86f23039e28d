"""The recipe that a search ends with: all settings of a run, with those that were found."""

import dataclasses
from typing import Any

import yaml

from ..config import TrainConfig, overlay
from ..tasks.metric import MetricSpec
from .result import Tuned
from .search import Attempt

LEFT_OUT = ("seed", "recipe", "data", "engine")  # of whoever trains by it


def recipe_text(config: TrainConfig, resolved: TrainConfig, found: Tuned, best: Attempt, metric: MetricSpec) -> str:
    """Return the YAML that `saccade train --recipe` takes.

    Args:
        config: the settings that the search began from.
        resolved: the same, filled in for the set.
        found: what was found.
        best: the trial that it was found by.
        metric: that counts.
    """
    fitted: dict[str, Any] = {"optim.batch_size": resolved.optim.batch_size, "optim.least_steps": None}
    if best.values.get("optim.lr") is None:
        fitted["optim.lr"] = resolved.optim.lr
    tuned = overlay(config, {**fitted, **found.settings}, source="the search")
    values = {name: value for name, value in dataclasses.asdict(tuned).items() if name not in LEFT_OUT}
    values = {name: value for name, value in values.items() if value not in (None, False)}
    own = "" if found.own_score is None else f", the settings it began from {metric.show(found.own_score)}"
    head = [
        f"Settings for {resolved.model.name}, found by `saccade tune` from the recipe {config.recipe}.",
        "",
        "command:  saccade train DATA --recipe THIS_FILE",
        f"found:    {', '.join(f'{name} = {value}' for name, value in found.settings.items())}",
        f"judged:   {metric.words} {metric.show(found.score)} after {best.epochs} epochs on a part of the training set"
        f"{own}; {found.trials} trials, one seed each",
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in head) + yaml.safe_dump(values, sort_keys=False)
