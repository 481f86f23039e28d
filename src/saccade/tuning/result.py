"""What a search returns, and the recipe that it writes: all settings of a run, with those that were found."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from ..report.page import show_facts
from ..settings import TrainConfig, overlay
from ..settings.strength import settled_strength
from ..support.wording import count_of
from ..tasks.metric import MetricSpec
from .search import Attempt

LEFT_OUT = ("seed", "recipe", "data", "engine")  # of whoever trains by it


@dataclass(frozen=True)
class Tuned:
    """What a search found.

    Attributes:
        path: its folder.
        recipe: the YAML file that `train` takes by `recipe=`.
        settings: that were found, by dotted name.
        score: of the best trial, on samples held out of the training set.
        own_score: of the recipe's own settings in a trial of the same length; None if there was none.
        metric: name of the metric that counts.
        edges: settings whose best value is the lowest or the highest that was tried, with which of the two.
        trials: that ended.
        seconds: all of it took, over all times it was begun.
    """

    path: Path
    recipe: Path
    settings: Mapping[str, Any]
    score: float
    own_score: float | None
    metric: str
    edges: Mapping[str, str]
    trials: int
    seconds: float

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value:g}" for name, value in self.settings.items() if isinstance(value, float))
        return f"<Tuned {self.path}: {self.metric} {self.score:.4g} with {values} of {count_of(self.trials, 'trial')}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        shown = {name: str(value) for name, value in self.settings.items()}
        return show_facts(str(self.path), {self.metric: f"{self.score:.4g}", "recipe": str(self.recipe), **shown})


def training_command(given: Mapping[str, Any], recipe: str | Path) -> str:
    """Return what to type to train as was searched: by the recipe, on the samples and in the way that were given."""
    words = ["saccade", "train", *([given["data.path"]] if given.get("data.path") else []), "--recipe", str(recipe)]
    for name, value in given.items():
        if name.startswith(("data.", "engine.")) and name not in ("data.path", "data.img_size", "data.workers"):
            words += ["--set", f"{name}={json.dumps(value)}"]
    return shlex.join(words)


def recipe_text(
    given: Mapping[str, Any],
    config: TrainConfig,
    resolved: TrainConfig,
    found: Tuned,
    best: Attempt,
    metric: MetricSpec,
) -> str:
    """Return the YAML that `saccade train --recipe` takes.

    Args:
        given: settings that the user gave, by dotted name.
        config: the settings that the search began from.
        resolved: the same as they were tried.
    """
    fitted: dict[str, Any] = {"optim.batch_size": resolved.optim.batch_size, "optim.least_steps": None}
    fitted |= settled_strength(resolved)
    if best.values.get("optim.lr") is None:
        fitted["optim.lr"] = resolved.optim.lr
    tuned = overlay(config, {**fitted, **found.settings}, source="the search")
    # What the set and the model's family made of the settings; under this recipe's name nothing would do so again.
    values: dict[str, Any] = {"data": {"img_size": resolved.data.img_size}}
    values |= {name: value for name, value in asdict(tuned).items() if name not in LEFT_OUT}
    values["model"]["options"] = resolved.model.options
    values = {name: value for name, value in values.items() if value not in (None, False)}
    own = "" if found.own_score is None else f", the settings it began from {metric.show(found.own_score)}"
    head = [
        f"Settings for {resolved.model.name}, found by `saccade tune` from the recipe {config.recipe}.",
        "",
        f"command:  {training_command(given, 'THIS_FILE')}",
        f"found:    {', '.join(f'{name} = {value}' for name, value in found.settings.items())}",
        f"judged:   {metric.words} {metric.show(found.score)} after {count_of(best.epochs, 'epoch')} on a part of the "
        f"training set{own}; {count_of(found.trials, 'trial')}, one seed each",
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in head) + yaml.safe_dump(values, sort_keys=False)
