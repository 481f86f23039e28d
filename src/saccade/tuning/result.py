"""What a search returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..report.notebook import show_facts


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
        return f"<Tuned {self.path}: {self.metric} {self.score:.4g} with {values} after {self.trials} trials>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        shown = {name: str(value) for name, value in self.settings.items()}
        return show_facts(str(self.path), {self.metric: f"{self.score:.4g}", "recipe": str(self.recipe), **shown})
