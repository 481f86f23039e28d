"""Which of several arms helps on your pictures, with everything else held equal."""

import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import rich.console

from ..config import ConfigError, DataConfig
from ..data.source import Source
from ..runs import require_apart
from ..training.loop import Interrupted
from .arms import parse_arms
from .budget import parse_duration
from .conclude import conclude
from .folder import MACHINE, Folder, is_finished, slug
from .plan import Plan
from .planning import Planner
from .question import Wish
from .result import Comparison
from .schedule import make_slots, run_jobs, visible_gpus
from .watch import Watch
from .writing import as_markdown

MOST_SEEDS = 10_000


def compare(
    data: str | None = None,
    *,
    arms: Sequence[str],
    seeds: int | Sequence[int] = 5,
    task: str | None = None,
    model: str | None = None,
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
    parallel: int | None = None,
    device: str | None = None,
    seeds_fixed: bool = False,
    paired: bool = True,
    overwrite: bool = False,
    quiet: bool = False,
) -> Comparison:
    """Train every arm with every seed, all else held equal, and say which arm helps.

    Can be stopped at any point and called again: finished runs are kept, a half-finished one goes on, and arms and
    seeds can be added.

    Args:
        data: a folder of class folders, a list, an array file, shards (see `open_data`); nothing is the embedded set.
        arms: "base", plug-ins and settings: "broadcast", "drloc:weight=0.3+lr=0.003", "name:=model=glnet_stl".
        seeds: how many, or which.
        task: "classify", "multilabel", "regress", ..., with options as in "multilabel:loss=asymmetric"; what the data's
            layout says if not given.
        model: of all arms, unless they say otherwise.
        recipe: likewise.
        epochs: likewise.
        batch_size: likewise.
        lr: likewise.
        img_size: likewise.
        out: the comparison's folder; one under `runs` named by what is asked if not given.
        settings: of all arms, by dotted name.
        metric: one that the task measures, or any number that runs end with; the one that runs are judged by if not
            given.
        larger_is_better: needed for numbers that the task does not describe.
        margin: a difference too small to matter, for the verdict "no difference".
        budget: time that all of it may take, such as "30m": seeds and epochs are reduced to fit.
        parallel: runs side by side, each in a process of its own; one a GPU by default, and one on a CPU.
        device: cpu, cuda, cuda:1, ...; all GPUs if there are any.
        seeds_fixed: speak about these very trainings alone, which allows a single seed.
        paired: False takes runs of one seed for unrelated.
        overwrite: let this take the place of another comparison in the folder.
        quiet: print nothing.

    Returns:
        What was found; also written to the folder as result.json, result.md (with the plan) and report.html.
    """
    planner = _prepare(locals())
    with planner.folder.lock():
        ready = planner.plan(keep=True)
        console = rich.console.Console(stderr=True, quiet=quiet, soft_wrap=True)
        console.print(str(ready.plan), highlight=False, markup=False)
        jobs = [job for job in ready.jobs if not is_finished(job.path)]
        primary = ready.question.metrics.get(ready.question.primary)
        watch = Watch(total=len(jobs), seconds=ready.plan.seconds, metric=primary, quiet=quiet)
        try:
            outcomes = run_jobs(jobs, planner.slots, watch)
        except Interrupted as stopped:  # told of the whole comparison, which is what is gone on with
            raise Interrupted(stopped.number, planner.folder.path) from None
        result = conclude(ready, outcomes, planner.folder)
        planner.folder.result_file.write_text(result.to_json(), encoding="utf-8")
        planner.folder.markdown_file.write_text(as_markdown(result, plan=True), encoding="utf-8")
        _report(result, ready.validation)
    console.print(f"written: {planner.folder.markdown_file.with_name('report.html')}", highlight=False, markup=False)
    return result


def _report(result: Comparison, source: Source) -> None:
    """Write the page; a comparison does not fail for want of it."""
    from .report import write_report

    try:
        write_report(result, source)
    except Exception as error:
        warnings.warn(f"{result.path} is finished, but its report was not written: {error!r}", stacklevel=3)


def plan_comparison(data: str | None = None, *, arms: Sequence[str], **options: Any) -> Plan:
    """Return the plan of a comparison without running or writing anything; arguments as for `compare`."""
    defaults = {name: value for name, value in (compare.__kwdefaults__ or {}).items() if name != "arms"}
    unknown = [name for name in options if name not in defaults]
    if unknown:
        raise TypeError(f"{unknown[0]!r} was given; the arguments are those of compare: {', '.join(defaults)}")
    return _prepare({"data": data, "arms": arms, **defaults, **options}).plan(keep=False).plan


def _prepare(given: Mapping[str, Any]) -> Planner:
    """Check what was asked and find the folder it belongs to."""
    wish = Wish(
        metric=given["metric"],
        larger=given["larger_is_better"],
        margin=given["margin"],
        fixed=given["seeds_fixed"],
        paired=given["paired"],
    )
    arms = parse_arms(given["arms"])
    seeds = _read_seeds(given["seeds"], fixed=given["seeds_fixed"])
    shared = _shared(given)
    request = {
        "data": given["data"] or "",
        "recipe": given["recipe"],
        "settings": {name: value for name, value in shared.items() if name not in MACHINE | {"data.path"}},
        "arms": {arm.name: arm.text for arm in arms},
        "seeds": list(seeds),
        "budget": None if given["budget"] is None else parse_duration(given["budget"]),
    }
    request = json.loads(json.dumps(request))
    out = given["out"] if given["out"] is not None else _default_folder(request)
    require_apart(out, DataConfig(path=given["data"] or "", val=shared.get("data.val")))
    device = given["device"] or str(shared.get("engine.device", "auto"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Planner(
        arms=arms,
        seeds=seeds,
        recipe=given["recipe"],
        shared=shared,
        request=request,
        folder=Folder(out),
        slots=make_slots(given["parallel"], device, gpus=visible_gpus(), cores=cores),
        wish=wish,
        overwrite=given["overwrite"],
    )


def _shared(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all arms by dotted name."""
    flags = {
        "task": given["task"],
        "data.path": given["data"],
        "model.name": given["model"],
        "schedule.epochs": given["epochs"],
        "optim.batch_size": given["batch_size"],
        "optim.lr": given["lr"],
        "data.img_size": given["img_size"],
        "engine.device": given["device"],
    }
    settings = dict(given["settings"] or {})
    if "seed" in settings:
        raise ConfigError("the setting seed was given; a comparison has several: give seeds=[...]")
    return {name: value for name, value in flags.items() if value is not None} | settings


def _read_seeds(seeds: int | Sequence[int], *, fixed: bool) -> tuple[int, ...]:
    if isinstance(seeds, int) and seeds > MOST_SEEDS:
        raise ValueError(f"seeds={seeds} was given; at most {MOST_SEEDS} are trained in one comparison")
    found = tuple(range(seeds)) if isinstance(seeds, int) else tuple(int(seed) for seed in seeds)
    if len(set(found)) < len(found):
        raise ValueError(f"seeds={list(found)} were given; a seed given twice is the same training twice")
    if len(found) < (1 if fixed else 2):
        told = "1 seed was" if len(found) == 1 else f"{len(found)} seeds were"
        raise ValueError(
            f"{told} given; at least 2, better 5, are needed: from one training of each arm nothing "
            "can be said about other trainings. Give more, or ask about these very weights only: seeds_fixed=True "
            "(--seeds-fixed)"
        )
    return found


def _default_folder(request: Mapping[str, Any]) -> Path:
    """Return a folder named by what is asked, so that asking again goes on with it; arms and seeds can be added."""
    told = {name: request[name] for name in ("data", "recipe", "settings")}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]
    return Path("runs") / f"compare-{slug(Path(request['data']).name or 'embedded')}-{digest}"
