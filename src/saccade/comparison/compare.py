"""Which of several arms helps on your images, with everything else held equal."""

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
from .plan.cut import STRIDE
from .plan.plan import Note, Plan
from .plan.planning import Planner
from .plan.ready import Ready
from .plan.request import Request
from .run.clock import Clock, Job, said_seeds
from .run.folder import is_finished
from .run.processes import ask
from .run.schedule import Watch, run_jobs
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
    """Train every arm with every seed, all else held equal, and say which arm helps.

    Can be stopped at any point and called again: finished runs are kept, a half-finished one is resumed, and arms and
    seeds can be added.

    Args:
        data: a folder of class folders, a list, an array file, shards (see `open_data`); nothing is the embedded set.
        arms: "base", plug-ins and settings: "broadcast", "drloc:weight=0.3+lr=0.003", "name:=model=glnet_stl".
        seeds: how many, or which; 5 if not given, with a budget as many as it is enough for.
        columns: of a list, which are read as what, as for `train`.
        task: "classify", "multilabel", "regress", ..., with options as in "multilabel:loss=asymmetric"; what the data's
            layout says if not given.
        model: of all arms, unless they say otherwise.
        pretrained: start from timm's weights of the model.
        checkpoint: weights to start from: a run, or a file of them.
        group: column of a list; samples that have the same in it are never on both sides of a split.
        folds: cut the training samples into so many parts and validate on each in turn, where they are too few for one
            held-out part; the set's own validation samples are left alone.
        repeats: how many ways to cut them.
        recipe, epochs, batch_size, lr, img_size: likewise.
        out: the comparison's folder; one under `runs` named by what is asked if not given.
        settings: of all arms, by dotted name.
        metric: one that the task measures, or any number that runs end with; the one that runs are judged by if not
            given.
        larger_is_better: needed for numbers that the task does not describe.
        margin: a difference too small to matter, for the verdict "no difference".
        budget: time that all of it may take, such as "30m": epochs are reduced to fit; model, image size and seeds are
            chosen where none is named.
        since: when that time began, on the monotonic clock; now if not given.
        tune: time for each arm, such as "5m", in which its rate, weight decay and strength of augmentation are sought
            on a part of the training samples before the comparison.
        parallel: runs side by side, each in a process of its own; one a GPU by default, and one on a CPU.
        device: cpu, cuda, cuda:1, ...; all GPUs if there are any.
        kernels: as for `train`, in all arms.
        seeds_fixed: speak about these very trainings alone, which allows a single seed.
        paired: False takes runs of one seed for unrelated.
        overwrite: let this take the place of another comparison in the folder.
        quiet: print nothing.

    Returns:
        What was found; also written to the folder as result.json, result.md (with the plan) and report.html.
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
        clock = Clock(jobs, planner.limits(ready), len(planner.crew.workers))
        try:
            cache = planner.cache if ready.cut is None else None  # folds are sets of their own, too many to keep
            outcomes = run_jobs(jobs, planner.crew, watch, clock, cache)
        except Interrupted as stopped:  # it is the whole comparison that is resumed
            raise Interrupted(stopped.number, folder.path) from None
        run = {(job.arm, job.seed): job for group in clock.whole.values() for job in group}
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
    """Return a note on seeds that there was no time for."""
    seeds = dict.fromkeys(job.seed for job in jobs if (job.arm, job.seed) not in outcomes)
    if not seeds:
        return []
    named = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    message = f"there was no time for {named}: runs were slower than planned"
    return [Note("budget", message, "add them with the same command and a larger --budget")]


def _shortened(ready: Ready) -> list[Note]:
    """Return a note on seeds whose runs were given fewer epochs than planned."""
    arm = max(ready.plan.arms, key=lambda arm: arm.epochs)
    own = arm.identical_to or arm.name
    found: dict[int, list[int]] = {}
    for job in ready.jobs:
        if job.arm == own and job.epochs < arm.epochs and is_finished(job.path):
            found.setdefault(job.epochs, []).append(job.whole % STRIDE)
    told = []
    for epochs, wholes in found.items():
        told.append(f"{said_seeds(list(dict.fromkeys(wholes)))} for {count_of(epochs, 'epoch')}")
    if not told:
        return []
    message = f"runs were slower than planned: {', '.join(told)} instead of {arm.epochs}, the same for every arm"
    return [Note("budget", message, "give a larger --budget, or run on an idle machine")]


def _doubts(planner: Planner, ready: Ready) -> list[Note]:
    """Return warnings of arms that look badly trained; a comparison does not fail for want of them."""
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
    except Exception as error:  # whatever a probe does, the runs are finished
        warnings.warn(f"whether the arms were trained well could not be probed: {error!r}", stacklevel=3)
    return notes


def _probe(
    planner: Planner, configs: Mapping[str, TrainConfig], scores: Mapping[str, float | None], *, tuned: bool
) -> list[Note]:
    """Return what short trainings warn of; a process that trained runs has the samples in memory still."""
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
    """Write the page; a comparison does not fail for want of it."""
    try:
        write_report(result, source)
    except Exception as error:
        warnings.warn(f"{result.path} is finished, but its report was not written: {error!r}", stacklevel=3)


def plan_comparison(data: str | None = None, *, arms: Sequence[str], **options: Any) -> Plan:
    """Return the plan of a comparison without running or writing anything; arguments as for `compare`."""
    unknown = [name for name in options if name not in Request.__dataclass_fields__]
    if unknown:
        raise TypeError(
            f"{unknown[0]!r} was given; the arguments are those of compare: {', '.join(Request.__dataclass_fields__)}"
        )
    planner = Planner(Request(data=data, arms=arms, **options))
    with planner.crew:
        return planner.plan(keep=False).plan
