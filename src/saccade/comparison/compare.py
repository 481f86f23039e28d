"""Compare training arms under equal conditions."""

import signal
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import rich.console

from ..data.source import Source
from ..runs.run import Run
from ..settings import TrainConfig
from ..support.files import write_text
from ..support.wording import count_of
from ..training.loop import Interrupted
from .conclude.conclusion import conclude
from .conclude.soundness import Probes, warn_of_chance, warn_of_losses
from .cross import OUT_OF_FOLD, keep_answers
from .page.report import write_report
from .page.result import Comparison
from .plan.folds import STRIDE
from .plan.plan import Note, Plan
from .plan.planning import Planner
from .plan.ready import Ready
from .plan.request import Request
from .run.folder import is_finished
from .run.processes import ask
from .run.schedule import Watch, run_jobs
from .run.scheduler import Job, RunScheduler, describe_seeds
from .run.worker import Outcome


def compare(
    data: str | None = None,
    *,
    arms: Sequence[str],
    seeds: int | Sequence[int] | None = None,
    columns: str | Mapping[str, str] | None = None,
    task: str | None = None,
    model: str | None = None,
    pretrained: bool | None = None,
    checkpoint: str | Path | None = None,
    group: str | None = None,
    folds: int | None = None,
    repeats: int = 1,
    recipe: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    img_size: int | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    metric: str | None = None,
    larger_is_better: bool | None = None,
    margin: float | None = None,
    budget: str | float | None = None,
    since: float | None = None,
    tune: str | float | None = None,
    parallel: int | None = None,
    device: str | None = None,
    kernels: str | None = None,
    seeds_fixed: bool = False,
    paired: bool = True,
    overwrite: bool = False,
    quiet: bool = False,
) -> Comparison:
    """Train every arm with every seed under equal conditions, and report which arms help.

    An interrupted comparison can be called again: finished runs are kept, unfinished ones are resumed, and arms and
    seeds can be added.

    Args:
        data: image folder, list, array file or shards (see `open_data`); default: the bundled dataset.
        arms: "base", plug-ins and settings: "broadcast", "drloc:weight=0.3+lr=0.003", "name:=model=glnet_stl".
        seeds: number of seeds, or a list; default: 5, or as many as fit into the budget.
        columns: column mapping of a list, as for `train`.
        task: "classify", "multilabel", "regress", ..., with options such as "multilabel:loss=asymmetric"; default:
            determined by the data's layout.
        model: model of all arms that do not override it.
        pretrained: start from timm's pretrained weights of the model.
        checkpoint: initial weights: a run or a file.
        group: column of a list; samples with the same value are never split between training and validation.
        folds: number of cross-validation folds of the training samples; the dataset's validation samples are not used.
        repeats: number of different splits into folds.
        recipe, epochs, batch_size, lr, img_size: likewise.
        out: folder of the comparison; default: one under `runs`, named by the request.
        settings: settings of all arms, by dotted name.
        metric: metric to compare: one of the task, or any final number of runs; default: the primary metric.
        larger_is_better: required for numbers that the task does not describe.
        margin: largest irrelevant difference, for the verdict "no difference".
        budget: time budget, such as "30m": epochs are reduced to fit; model, image size and seeds are chosen unless
            given.
        since: start of the budget, by `time.monotonic`; default: now.
        tune: time for tuning each arm, such as "5m": learning rate, weight decay and augmentation strength are searched
            on a part of the training samples.
        parallel: number of parallel runs, each in its own process; default: one per GPU, one on a CPU.
        device: cpu, cuda, cuda:1, ...; default: all GPUs, if there are any.
        kernels: as for `train`, in all arms.
        seeds_fixed: restrict conclusions to these trainings, which allows a single seed.
        paired: False treats runs of the same seed as independent.
        overwrite: replace another comparison in the folder.
        quiet: print nothing.

    Returns:
        The result, which is also written to the folder as result.json, result.md (with the plan) and report.html.
    """
    planner = Planner(
        Request(
            data=data,
            arms=arms,
            seeds=seeds,
            columns=columns,
            task=task,
            model=model,
            pretrained=pretrained,
            checkpoint=checkpoint,
            group=group,
            folds=folds,
            repeats=repeats,
            recipe=recipe,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            img_size=img_size,
            out=out,
            settings=settings,
            metric=metric,
            larger_is_better=larger_is_better,
            margin=margin,
            budget=budget,
            since=since,
            tune=tune,
            parallel=parallel,
            device=device,
            kernels=kernels,
            seeds_fixed=seeds_fixed,
            paired=paired,
            overwrite=overwrite,
            quiet=quiet,
        )
    )
    folder = planner.folder
    with folder.lock(), planner.crew:
        ready = planner.plan(keep=True)
        console = rich.console.Console(stderr=True, quiet=quiet, soft_wrap=True, highlight=False, markup=False)
        console.print(str(ready.plan))
        jobs = [job for job in ready.jobs if not is_finished(job.path)]
        primary = ready.question.metrics.get(ready.question.primary)
        watch = Watch(total=len(jobs), seconds=ready.plan.seconds, metric=primary, quiet=quiet)
        scheduler = RunScheduler(jobs, planner.limits(ready), len(planner.crew.workers))
        try:
            cache = planner.cache if ready.folds is None else None  # folds are separate datasets, too many to cache
            outcomes = run_jobs(jobs, planner.crew, watch, scheduler, cache)
        except Interrupted as stopped:  # the whole comparison is resumed
            raise Interrupted(stopped.number, folder.path) from None
        run = {(job.arm, job.seed): job for group in scheduler.passes.values() for job in group}
        ready = replace(ready, jobs=tuple(run.get((job.arm, job.seed), job) for job in ready.jobs))
        notes = [*_left_out(jobs, outcomes), *_shortened(ready), *_doubts(planner, ready)]
        planner.crew.dismiss()
        ready = replace(ready, notes=(*ready.notes, *notes))
        result = conclude(ready, outcomes, folder)
        keep_answers(ready, folder.path / OUT_OF_FOLD)
        write_text(folder.result_file, result.to_json())
        write_text(folder.markdown_file, result.to_markdown(plan=True))
        _report(result, ready.validation)
    console.print(f"written: {folder.path / 'report.html'}")
    return result


def _left_out(jobs: Sequence[Job], outcomes: Mapping[tuple[str, int], Outcome]) -> list[Note]:
    """Return a note on seeds dropped for lack of time."""
    seeds = dict.fromkeys(job.seed for job in jobs if (job.arm, job.seed) not in outcomes)
    if not seeds:
        return []
    named = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    message = f"no time was left for {named}: runs were slower than planned"
    return [Note("budget", message, "add them with the same command and a larger --budget")]


def _shortened(ready: Ready) -> list[Note]:
    """Return a note on seeds with fewer epochs than planned."""
    arm = max(ready.plan.arms, key=lambda arm: arm.epochs)
    own = arm.identical_to or arm.name
    found: dict[int, list[int]] = {}
    for job in ready.jobs:
        if job.arm == own and job.epochs < arm.epochs and is_finished(job.path):
            found.setdefault(job.epochs, []).append(job.cv_pass % STRIDE)
    details = []
    for epochs, wholes in found.items():
        details.append(f"{describe_seeds(list(dict.fromkeys(wholes)))} for {count_of(epochs, 'epoch')}")
    if not details:
        return []
    message = f"runs were slower than planned: {', '.join(details)} instead of {arm.epochs}, equally in every arm"
    return [Note("budget", message, "give a larger --budget, or run on an idle machine")]


def _doubts(planner: Planner, ready: Ready) -> list[Note]:
    """Return warnings on badly trained arms; errors do not fail the comparison."""
    runs = {arm.name: ready.finished(arm.name) for arm in ready.plan.arms if arm.identical_to is None}
    primary = ready.question.primary
    scores: dict[str, float | None] = {}
    for name, found in runs.items():
        ended = [Run(path).summary().get(f"val_{primary}") for path in found.values()]
        known = [score for score in ended if score is not None]
        scores[name] = sum(known) / len(known) if known else None
    notes = [*warn_of_losses(runs), *warn_of_chance(scores, ready.question.metrics.get(primary))]
    configs = {name: planner.configs[name] for name in runs if runs[name]}
    try:
        notes += _probe(planner, configs, scores, tuned=ready.tuned is not None)
    except Interrupted:
        raise
    except Exception as error:  # probes must not fail a finished comparison
        warnings.warn(f"the check for under-trained arms failed: {error!r}", stacklevel=3)
    return notes


def _probe(
    planner: Planner, configs: Mapping[str, TrainConfig], scores: Mapping[str, float | None], *, tuned: bool
) -> list[Note]:
    """Return warnings of probe trainings."""
    folder, until = planner.folder.path, planner.until()
    if not planner.crew.workers:
        return Probes(folder, planner.cache, until).warn(configs, scores, tuned=tuned)
    worker = planner.crew.workers[0]
    asked: dict[str, Any] = {"do": "doubt", "folder": str(folder.resolve()), "scores": scores, "tuned": tuned}
    asked |= {"configs": {name: worker.slot.settings(config) for name, config in configs.items()}}
    asked |= {"seconds": None if until is None else until - time.monotonic()}
    try:
        with tempfile.TemporaryDirectory() as place:
            return [Note(**note) for note in ask(worker, asked, Path(place))["notes"]]
    except KeyboardInterrupt:
        raise Interrupted(signal.SIGINT, folder) from None


def _report(result: Comparison, source: Source) -> None:
    """Write the page; errors do not fail the comparison."""
    try:
        write_report(result, source)
    except Exception as error:
        warnings.warn(f"{result.path} is finished, but its report was not written: {error!r}", stacklevel=3)


def plan_comparison(data: str | None = None, *, arms: Sequence[str], **options: Any) -> Plan:
    """Return the plan of a comparison without running or writing anything; arguments as for `compare`."""
    unknown = [name for name in options if name not in Request.__dataclass_fields__]
    if unknown:
        raise TypeError(
            f"unexpected argument {unknown[0]!r}; plan_comparison takes the arguments of compare: "
            f"{', '.join(Request.__dataclass_fields__)}"
        )
    planner = Planner(Request(data=data, arms=arms, **options))
    with planner.crew:
        return planner.plan(keep=False).plan
