"""The result of a search, and the recipe that it writes."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from ..report.page import show_facts
from ..settings import TrainConfig, overlay
from ..settings.strength import frozen_augmentation
from ..support.wording import count_of
from ..tasks.metric import MetricSpec
from .search import Attempt

LEFT_OUT = ("seed", "recipe", "data", "engine")  # settings that are not part of the recipe


@dataclass(frozen=True)
class Tuned:
    """Result of a search.

    Attributes:
        path: folder of the search.
        recipe: YAML file for `train(recipe=...)`.
        settings: best settings, by dotted name.
        score: score of the best trial, on held-out training samples.
        own_score: score of the recipe's own settings in a trial of the same length, if there was one.
        metric: name of the primary metric.
        edges: settings whose best value is the lowest or highest of its range, and which of the two.
        trials: number of finished trials.
        seconds: duration, including resumed parts.
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
        """Return the notebook representation."""
        shown = {name: str(value) for name, value in self.settings.items()}
        return show_facts(str(self.path), {self.metric: f"{self.score:.4g}", "recipe": str(self.recipe), **shown})


def training_command(given: Mapping[str, Any], recipe: str | Path) -> str:
    """Return the command that trains with the recipe on the same dataset."""
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
    """Return the recipe as YAML.

    Args:
        given: settings given by the user, by dotted name.
        config: initial settings of the search.
        resolved: the same settings, resolved.
    """
    fitted: dict[str, Any] = {"optim.batch_size": resolved.optim.batch_size, "optim.least_steps": None}
    fitted |= frozen_augmentation(resolved)
    if best.values.get("optim.lr") is None:
        fitted["optim.lr"] = resolved.optim.lr
    tuned = overlay(config, {**fitted, **found.settings}, source="the search")
    # Include what was derived from dataset and model family, which do not apply to this recipe's name.
    values: dict[str, Any] = {"data": {"img_size": resolved.data.img_size}}
    values |= {name: value for name, value in asdict(tuned).items() if name not in LEFT_OUT}
    values["model"]["options"] = resolved.model.options
    values = {name: value for name, value in values.items() if value not in (None, False)}
    own = "" if found.own_score is None else f", with the initial settings {metric.show(found.own_score)}"
    head = [
        f"Settings for {resolved.model.name}, found by `saccade tune` from the recipe {config.recipe}.",
        "",
        f"command:  {training_command(given, 'THIS_FILE')}",
        f"found:    {', '.join(f'{name} = {value}' for name, value in found.settings.items())}",
        f"judged:   {metric.words} {metric.show(found.score)} after {count_of(best.epochs, 'epoch')} on a part of the "
        f"training set{own}; {count_of(found.trials, 'trial')}, one seed each",
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in head) + yaml.safe_dump(values, sort_keys=False)
