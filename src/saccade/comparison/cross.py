"""Cross-validation of one training configuration, with intervals."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import rich.console

from ..runs.run import Run
from ..settings import ConfigError, flatten
from ..statistics.difference import Difference
from ..statistics.folds import Folds
from ..statistics.jackknife import pseudo_values
from ..statistics.macro import macro_values
from ..statistics.paired import from_differences
from ..support.files import write_text
from ..tasks.metric import GROUP, MetricSpec
from ..training.resumed import reopened_config
from .conclude.evidence import Evidence, common_places, per_sample
from .plan.folds import FoldAssignment
from .plan.planning import Planner
from .plan.ready import Ready
from .plan.request import Request
from .run.folder import is_finished, slug
from .run.schedule import Watch, run_jobs

OUT_OF_FOLD = "out_of_fold"  # folder of out-of-fold predictions
ARM = "base"
GROUPS = 100  # groups of the jackknife


@dataclass(frozen=True)
class Validated:
    """Result of cross-validation.

    Attributes:
        path: folder with the runs and out-of-fold predictions.
        metrics: estimate with interval for each metric with sample scores.
        specs: specifications of the metrics.
        primary: name of the primary metric.
        seeds: seeds of the trainings.
        folds: number of folds.
        samples: number of validated samples.
        seconds: total duration of the trainings.
        note: how samples were split.
    """

    path: Path
    metrics: Mapping[str, Difference]
    specs: Mapping[str, MetricSpec]
    primary: str
    seeds: tuple[int, ...]
    folds: int
    samples: int
    seconds: float
    note: str

    @property
    def score(self) -> float:
        """Estimate of the primary metric."""
        return self.metrics[self.primary].mean

    def to_json(self) -> str:
        """Return the result as JSON text."""
        found = {
            name: {"mean": one.mean, "low": one.low, "high": one.high, "level": one.level}
            for name, one in self.metrics.items()
        }
        record = {"metrics": found, "primary": self.primary, "seeds": list(self.seeds), "folds": self.folds}
        record |= {"samples": self.samples, "seconds": self.seconds, "note": self.note}
        return json.dumps(record, indent=1)

    def to_markdown(self) -> str:
        """Return the result as Markdown."""
        rows = [
            (spec.words, spec.show(one.mean), " to ".join(spec.show(_inside(x, spec)) for x in (one.low, one.high)))
            for name, one in self.metrics.items()
            if (spec := self.specs[name])
        ]
        rows.sort(key=lambda row: row[0] != self.specs[self.primary].words)
        lines = ["| Metric | Mean | 95 % interval |", "| --- | --- | --- |"]
        return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), "", f"{self.note}.", ""])


def cross_validate(
    run: str | Path,
    *,
    folds: int = 5,
    seeds: int | Sequence[int] = 2,
    repeats: int = 1,
    group: str | None = None,
    data: str | None = None,
    out: str | Path | None = None,
    parallel: int | None = None,
    device: str | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Validated:
    """Cross-validate a run's settings on folds of its training samples.

    An interrupted cross-validation can be called again. Out-of-fold predictions are saved in the folder.

    Args:
        run: run folder; or a YAML file of settings or a recipe's name, with `data`.
        folds: number of folds.
        seeds: number of seeds for every fold, or a list; two or more separate the variance of seeds and samples.
        repeats: number of different splits.
        group: column of a list; samples with the same value are never split.
        data: dataset to use instead of the run's.
        out: output folder; default: beside the run.
        parallel: number of parallel runs; default: one per GPU, one on a CPU.
        device: cpu, cuda, ...
        settings: changed settings, by dotted name.
        quiet: print nothing.
    """
    path, given, recipe = Path(run).expanduser(), dict(settings or {}), str(run)
    if path.is_dir():
        config = reopened_config(Run.open(path), [])
        recipe = config.recipe or "small"
        aside = ("seed", "recipe", "data.path", "data.fold", "data.folds", "engine.device")
        given = {name: value for name, value in flatten(config).items() if name not in aside} | given
        data, group = data or config.data.path, group or config.data.group
        given.pop("data.group")
    elif data is None:
        raise ConfigError(f"{run} is not a run directory; with a recipe, also give the dataset: data=...")
    named = f"{path.name or 'run'}-folds"
    request = Request(
        data=data,
        arms=[ARM],
        alone=True,
        typed=tuple(settings or ()),
        seeds=seeds,
        folds=folds,
        repeats=repeats,
        group=group,
        recipe=recipe,
        settings=given,
        parallel=parallel,
        device=device,
        out=out or (path.parent / named if path.is_dir() else Path("runs") / slug(named)),
        quiet=quiet,
    )
    planner = Planner(request)
    with planner.folder.lock(), planner.crew:
        ready = planner.plan(keep=True)
        jobs = [job for job in ready.jobs if not is_finished(job.path)]
        primary = ready.question.metrics.get(ready.question.primary)
        outcomes = run_jobs(jobs, planner.crew, Watch(total=len(jobs), metric=primary, quiet=quiet))
        failed = {f"{key}": one.reason for key, one in outcomes.items() if one.kind != "finished"}
        if not ready.passes(ARM):
            raise ConfigError(f"no seed finished all {folds} folds: {next(iter(failed.values()), 'no run started')}")
        result = _conclude(ready, planner.folder.path)
        keep_answers(ready, planner.folder.path / OUT_OF_FOLD)
        write_text(planner.folder.result_file, result.to_json())
        write_text(planner.folder.markdown_file, result.to_markdown())
    console = rich.console.Console(stderr=True, quiet=quiet, soft_wrap=True, highlight=False, markup=False)
    console.print(f"written: {result.path}")
    return result


def keep_answers(ready: Ready, path: Path) -> None:
    """Save out-of-fold predictions, one file for each arm and seed."""
    for arm in ready.plan.arms if ready.folds is not None else ():
        for seed, runs in ready.passes(arm.name).items():
            assert ready.folds is not None
            ready.folds.save_answers(path / f"{slug(arm.name)}-seed-{seed}.safetensors", runs)


def _inside(value: float, spec: MetricSpec) -> float:
    return min(max(value, 0.0), 1.0) if spec.share else value


def _conclude(ready: Ready, path: Path) -> Validated:
    assert ready.folds is not None
    evidence, assignment = ready.evidence(ARM), ready.folds
    specs = {name: spec for name, spec in evidence.metrics.items() if evidence.has(spec.column)}
    found = {name: _estimate(evidence, spec, assignment) for name, spec in specs.items()}
    return Validated(
        path=path,
        metrics=found,
        specs=specs,
        primary=ready.question.primary,
        seeds=evidence.seeds,
        folds=assignment.count,
        samples=len(next(iter(evidence.samples.values())).places),
        seconds=sum(float(one["seconds"]) for one in evidence.summaries.values()),
        note=assignment.describe(seeds=len(evidence.seeds)),
    )


def _estimate(evidence: Evidence, spec: MetricSpec, assignment: FoldAssignment) -> Difference:
    """Return the estimate of a metric over all passes, with its interval."""
    places = common_places({ARM: evidence})
    records = per_sample(evidence, spec.column, evidence.seeds, places)
    labels = per_sample(evidence, GROUP, evidence.seeds[:1], places)[0] if spec.by_group else None
    return estimate(records, spec.statistic, labels, folds=assignment.folds().subset(places), share=spec.share)


def estimate(
    records: Sequence[np.ndarray] | np.ndarray,
    statistic: Callable[[Any], float] | None,
    labels: np.ndarray | None,
    *,
    folds: Folds,
    share: bool,
) -> Difference:
    """Return one arm's estimate over folds with its interval, as a difference from zero.

    Args:
        records: out-of-fold records of every sample, one array per seed.
        statistic: statistic of records; None: their mean.
        labels: classes whose means are averaged, P; None: the mean over all samples.
    """
    if statistic is not None:
        group, folds = folds.grouped(GROUPS, len(records[0]), np.random.default_rng(0))
        values = np.stack([pseudo_values(one, statistic, group, int(group.max()) + 1) for one in records])
    else:
        values = np.stack([one.astype(np.float64) for one in records])
        if labels is not None:
            _, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
            values = macro_values(values, index, np.maximum(counts, 2))
    found = from_differences(values, folds=folds, share=share)
    return replace(found, n_samples=len(records[0]), mcnemar_p=None, mcnemar_per_seed=np.empty(0))
