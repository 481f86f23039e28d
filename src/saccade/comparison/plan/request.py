"""The request of a comparison, validated before data is opened, and the metric it is judged by."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ...runs.run import require_apart
from ...settings import ConfigError, DataConfig
from ...settings.values import require_number
from ...statistics.folds import Folds
from ...support.durations import parse_duration
from ...tasks.metric import MetricSpec
from ...training.machine import sets_run_length
from ...training.recipes import SHORT_FLAGS, gather_settings
from ..run.folder import MACHINE, slug
from .arms import Arm, parse_arm, parse_arms
from .budget import CHOSEN_SEEDS, USUAL_SEEDS

MOST_SEEDS = 10_000


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request; the attributes are the arguments of `compare`."""

    arms: Sequence[str]
    data: str | None = None
    seeds: int | Sequence[int] | None = None
    columns: str | Mapping[str, str] | None = None
    task: str | None = None
    model: str | None = None
    pretrained: bool | None = None
    checkpoint: str | Path | None = None
    group: str | None = None
    folds: int | None = None
    repeats: int = 1
    alone: bool = False  # one arm is enough: nothing is compared
    typed: Sequence[str] | None = None  # settings of all arms that a user gave, where others are a run's; None: all
    recipe: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    img_size: int | None = None
    out: str | Path | None = None
    settings: Mapping[str, Any] | None = None
    metric: str | None = None
    larger_is_better: bool | None = None
    margin: float | None = None
    budget: str | float | None = None
    since: float | None = None
    tune: str | float | None = None
    parallel: int | None = None
    device: str | None = None
    kernels: str | None = None
    seeds_fixed: bool = False
    paired: bool = True
    overwrite: bool = False
    quiet: bool = False

    @cached_property
    def parsed_arms(self) -> tuple[Arm, ...]:
        """The parsed arms."""
        return tuple(parse_arm(text) for text in self.arms) if self.alone else parse_arms(self.arms)

    @cached_property
    def seed_list(self) -> tuple[int, ...]:
        """The distinct seeds."""
        seeds = self.seeds
        if seeds is None:
            seeds = USUAL_SEEDS if self.budget is None else CHOSEN_SEEDS
        if isinstance(seeds, int) and seeds > MOST_SEEDS:
            raise ValueError(f"seeds={seeds}: a comparison trains at most {MOST_SEEDS} seeds")
        found = tuple(range(seeds)) if isinstance(seeds, int) else tuple(int(seed) for seed in seeds)
        if len(set(found)) < len(found):
            raise ValueError(f"seeds={list(found)}: seeds must differ; a repeated seed repeats the same run")
        if self.folds is not None:
            self._check_folds()
        elif self.repeats != 1:
            raise ConfigError(f"repeats = {self.repeats} has no effect without folds; give folds, too")
        if len(found) < (1 if self.seeds_fixed or self.folds is not None else 2):
            given = "1 seed was" if len(found) == 1 else f"{len(found)} seeds were"
            raise ValueError(
                f"{given} given; at least 2, better 5, are needed: one run of each arm says nothing about other "
                "runs. Add seeds, or restrict the conclusions to these trained weights: seeds_fixed=True "
                "(--seeds-fixed)"
            )
        return found

    def _check_folds(self) -> None:
        require_number("folds", self.folds, 2, 1000)
        require_number("repeats", self.repeats, 1, 1000)
        if not self.paired:
            raise ConfigError(
                "paired=False cannot be combined with folds, which pair the arms by seed, fold and sample; remove "
                "one of them"
            )

    @cached_property
    def shared(self) -> dict[str, Any]:
        """The settings of all arms by dotted name."""
        given = {name: getattr(self, name) for name in SHORT_FLAGS if hasattr(self, name)}
        given["checkpoint"] = None if self.checkpoint is None else str(self.checkpoint)
        if "seed" in (self.settings or {}):
            raise ConfigError("the setting seed cannot be set in a comparison, which has several; use seeds=[...]")
        return gather_settings(self.settings, **given)

    @cached_property
    def leaves_size(self) -> bool:
        """Whether nothing is named, for all arms or for one, that decides on model, image size or length."""
        own = {name: one.settings[name] for one in self.parsed_arms for name in one.settings}
        named = {**self.shared, **{name: value for name, value in own.items() if not name.startswith("optim.")}}
        recipes = [self.recipe, *(one.recipe for one in self.parsed_arms)]
        return not any(recipes) and not sets_run_length(named)

    @cached_property
    def record(self) -> dict[str, Any]:
        """The request as stored in comparison.json."""
        found = {
            "data": self.data or "",
            "recipe": self.recipe,
            "settings": {name: value for name, value in self.shared.items() if name not in MACHINE | {"data.path"}},
            "arms": {arm.name: arm.text for arm in self.parsed_arms},
            "seeds": None if self.seeds is None and self.budget is not None else list(self.seed_list),
            "budget": None if self.budget is None else parse_duration(self.budget),
        }
        if self.folds is not None:
            found |= {"folds": self.folds, "repeats": self.repeats}
        found |= {} if self.tune is None else {"tune": parse_duration(self.tune, "tune")}
        return json.loads(json.dumps(found))

    @cached_property
    def folder(self) -> Path:
        """The output folder; by default named by a hash of the request, so that the same command resumes it."""
        out = self.out
        if out is None:
            kept = ("data", "recipe", "settings", "tune", "folds")
            named = {name: self.record[name] for name in kept if name in self.record}
            digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:8]
            out = Path("runs") / f"compare-{slug(Path(self.record['data']).name or 'embedded')}-{digest}"
        require_apart(out, DataConfig(path=self.data or "", val=self.shared.get("data.val")))
        return Path(out).expanduser()


@dataclass(frozen=True)
class ComparisonSpec:
    """Metric of a comparison, how runs are paired, and what the task measures."""

    metric: str  # one of the task's, or any number that runs end with
    larger_is_better: bool  # whether more of it is better
    primary: str  # name of the metric that runs are judged by
    metrics: Mapping[str, MetricSpec] = field(default_factory=dict)  # what the task measures, by name
    margin: float | None = None  # a difference too small to matter
    fixed: bool = False  # whether these very trainings are meant, not others
    paired: bool = True  # whether runs of one seed belong together
    level: float = 0.95  # confidence of the intervals
    folds: Folds | None = None  # how samples were cut, where each was validated on in a fold


def resolve_metric(
    request: Request,
    metrics: Sequence[MetricSpec],
    primary: str,
    arms: Mapping[str, Sequence[MetricSpec]] | None = None,
) -> ComparisonSpec:
    """Return the specification of a comparison: a metric that every arm measures, and which way it is better.

    Args:
        metrics: those of the reference.
        primary: which of them runs are judged by.
        arms: those of every arm, by its name.
    """
    known = {one.name: one for one in metrics}
    metric = primary if request.metric is None else request.metric
    spec, larger = find_metric(known, metric), request.larger_is_better
    if larger is None and spec is None:
        raise ValueError(
            f"metric={metric!r}: the task measures {', '.join(known)}. Any other value in the summaries of the runs "
            "can be compared from Python, with larger_is_better=True or False"
        )
    measured = {name: {one.name: one for one in found} for name, found in (arms or {}).items()}
    lacking = [name for name, found in measured.items() if spec is not None and find_metric(found, metric) is None]
    if lacking:
        shared = [name for name in known if all(name in found for found in measured.values())]
        raise ValueError(
            f"{', '.join(lacking)} {'do' if lacking[1:] else 'does'} not measure {metric}, the metric of the "
            f"comparison; choose one that all arms measure with --metric: {', '.join(shared)}"
        )
    larger = spec.larger_is_better if spec is not None and larger is None else bool(larger)
    if any(primary not in found for found in measured.values()):  # such as masks' precision, of a detector of boxes
        primary = metric
    return ComparisonSpec(metric, larger, primary, known, request.margin, request.seeds_fixed, request.paired)


def find_metric(metrics: Mapping[str, MetricSpec], name: str) -> MetricSpec | None:
    """Return a metric's specification, also by its key in summary.json; None if it is unknown."""
    return metrics.get(name) or metrics.get(name.removeprefix("val_"))
