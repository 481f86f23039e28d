"""Train a model, or resume a run."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch

from ..data.loader import check_bad
from ..data.open import Data
from ..data.source import Stream
from ..runs.run import Run, RunError
from ..runs.state import load_state
from ..settings import ConfigError, TrainConfig, to_yaml
from ..settings.decisions import Decision, write_decisions
from ..settings.overrides import names_of
from ..support.durations import parse_duration
from ..support.files import free_name, write_text
from ..support.telling import saying
from ..tasks.opening import TaskChoice, open_samples
from .allowance import Allowance
from .console import Console
from .engine import free_memory, torch_settings
from .finish import Trained, finish
from .fitting import find_rate
from .lifecycle import mark, refuse_if_training, restarted_run, run_lock
from .loop import Loop, TrainingError
from .machine import BudgetFitter, sets_run_length
from .parallel import World, join_world, local_device
from .recipes import configure, gather_settings
from .resolve import resolve
from .resumed import reopened_config, resumed_config
from .setup import assemble
from .time_limit import TimeLimit


def train(
    data: str | None = None,
    *,
    columns: str | Mapping[str, str] | None = None,
    task: str | None = None,
    model: str | None = None,
    plugins: Sequence[str] = (),
    pretrained: bool | None = None,
    checkpoint: str | Path | None = None,
    group: str | None = None,
    recipe: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    img_size: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    kernels: str | None = None,
    workers: int | None = None,
    resume: str | Path | None = None,
    overwrite: bool = False,
    settings: Mapping[str, Any] | None = None,
    time: str | float | None = None,
    since: float | None = None,
    quiet: bool = False,
) -> Trained:
    """Train a model, or resume a run.

    Args:
        data: image folder, list, array file or shards (see `open_data`); default: the bundled dataset.
        columns: column mapping of a list, such as "image=name,label=breed".
        task: "classify", "multilabel", "regress", ..., with options such as "multilabel:loss=asymmetric"; default:
            determined by the data's layout.
        model: model name, of saccade or timm.
        plugins: plug-ins added to the recipe's: "broadcast", "drloc:weight=0.3", ...; a leading "none" removes the
            recipe's.
        pretrained: start from timm's pretrained weights of the model.
        checkpoint: initial weights: a run or a file.
        group: column of a list; samples with the same value are never split between training and validation.
        recipe: a name of `list_recipes()` or a YAML file; default: "small", or "finetune" with trained weights.
        epochs: number of epochs.
        batch_size: global batch size.
        lr: peak learning rate.
        img_size: side of the images in pixels.
        seed: random seed (initialisation, data order, augmentation).
        out: the run's folder; default: a new one under `runs`.
        device: cpu, cuda, cuda:1, ...; default: a GPU if there is one.
        kernels: "auto", "off", or names of `saccade kernels`; "-NAME" for all but one.
        workers: processes that read files.
        resume: a run's folder to resume; only settings that do not change the result can be given with it.
        overwrite: replace the run in `out`.
        settings: other settings by dotted name.
        time: time budget of the whole run, such as "10m" or seconds; the number of epochs is fitted to it, and with
            default settings also model and image size.
        since: start of the budget, by `time.monotonic`; default: now.
        quiet: print nothing.

    Returns:
        The result; everything else is in the run's folder.
    """
    given = gather_settings(
        settings,
        data=data,
        columns=columns,
        task=task,
        model=model,
        plugins=plugins,
        pretrained=pretrained,
        checkpoint=None if checkpoint is None else str(checkpoint),
        group=group,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        img_size=img_size,
        seed=seed,
        device=device,
        kernels=kernels,
        workers=workers,
    )
    if resume is not None and out is not None and Path(out) != Path(resume):
        raise ConfigError(f"out={out} was given with resume={resume}; a resumed run stays in its folder")
    if resume is not None and time is not None:
        raise ConfigError(f"time={time} was given with resume={resume}; a resumed run keeps its number of epochs")
    seconds = None if time is None else parse_duration(time, name="time")
    free = recipe is None and not sets_run_length(given)
    fitting = BudgetFitter(seconds, free=free, given=given)
    fitting = fitting if since is None else replace(fitting, start=since)
    notes, record = list[str](), list[Decision]()
    if resume is not None:
        run = Run.open(resume)
        config = resumed_config(run, recipe, given, record=record)
    elif (previous := restarted_run(out)) is not None:  # by this command, so that the run has its resolved settings
        run, given = Run.open(previous), {}
        config = reopened_config(run, record)
    else:
        asked = configure(recipe, given, record=record)
        (config, notes), run = find_rate(asked, given, record=record), None
    how: dict[str, Any] = {"overwrite": overwrite, "quiet": quiet, "notes": notes, "fitting": fitting}
    how["record"] = record
    try:
        return train_config(config, run=run, out=out, given=names_of(given), **how)
    finally:
        free_memory()


def train_config(
    config: TrainConfig,
    *,
    run: Run | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    given: Sequence[str] = (),
    notes: Sequence[str] = (),
    fitting: BudgetFitter | None = None,
    opened: tuple[TaskChoice, Data] | None = None,
    allowance: Allowance | None = None,
    record: Sequence[Decision] = (),
) -> Trained:
    """Train with complete settings.

    Args:
        run: a run to resume.
        given: settings given by the user, by dotted name; unused ones are refused.
        notes: notes to print first.
        fitting: fits a new run to a time budget; None: no fitting.
        opened: task and samples, if already open.
        allowance: time budget of a run within a comparison; `DeadlineExceeded` is raised, with the state saved, when
            it will be missed.
        record: decisions on settings so far.
    """
    device = local_device(config.engine.device)
    with torch_settings(config, device), join_world(device) as world:
        console = Console(quiet=quiet or not world.is_main)
        with saying(console.say):
            choice, data = opened or open_samples(config.task, config.data)
        budget_notes, decided = list[str](), list(record)
        if fitting is not None and run is None:
            resolve(config, choice, data, device, given=given)  # refuse invalid settings before timing
            fitting = replace(fitting, say=console.say, tells=not quiet)
            config, budget_notes = fitting.fit(config, choice, data, world, device, record=decided)
        resumed = run is not None
        config, spec = resolve(config, choice, data, device, given=given, resumed=resumed, record=decided)
        if run is not None:
            _refuse_other_readers(run.config(), config, data)
        else:
            _refuse_without_weights(config)
        with saying(console.say):
            parts = assemble(config, choice, data, spec, world=world, device=device)
        console.judge_by(parts.metrics, parts.primary.name, parts.task.running)
        console.expect(config, parts.feed.steps, len(parts.validation.source), estimated=bool(budget_notes))
        check_bad(parts.validation.bad, config.data.bad_limit * (held := len(parts.validation.source)), of=held)
        run = run or _new_run(config, out, world, overwrite=overwrite)
        for note in (*notes, *data.notes, *spec.notes, *parts.feed.notes, *budget_notes):
            console.say(note)
        with run_lock(run, world):
            if world.is_main:
                write_decisions(run.path, decided)
            loop = Loop(config, run, parts, world=world, device=device, console=console)
            loop.allowance = allowance
            if device.type == "cuda" or loop.guard.names or loop.guard.handle.unused:
                console.say(loop.guard.describe())
            if resumed:
                _restore(loop, run, console)
            elif fitting is not None and fitting.deadline is not None:
                loop.limit = TimeLimit(fitting.deadline, loop.now(), fitting.validation)
            started = monotonic()
            try:
                with console:
                    last = _fit(loop)
                return finish(loop, run, parts, last, seconds=monotonic() - started)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(run.path) from None  # the run can be resumed


def _fit(loop: Loop) -> dict[str, Any]:
    """Run a loop; errors are raised with advice, and unreadable samples are always recorded."""
    try:
        return loop.fit()
    except torch.OutOfMemoryError as error:
        raise TrainingError(
            f"the device ran out of memory at step {loop.step}: {str(error).splitlines()[0]}. Resume with gradient "
            f"accumulation: saccade train --resume {loop.run.path} --set "
            f"optim.accumulate={2 * loop.config.optim.accumulate}; or start again with a smaller batch size or "
            "model, or with engine.grad_checkpointing=true"
        ) from error
    except (RuntimeError, ConnectionError, EOFError) as error:
        # A dead worker raises an error anywhere in the main thread, or at the next read.
        if isinstance(error, RuntimeError) and not str(error).startswith("DataLoader worker"):
            raise
        for _ in range(4):  # signals of other dead workers may follow; keep them out of what comes next
            with suppress(RuntimeError):
                sleep(0.05)
        raise TrainingError(
            f"a data-loading process was killed at step {loop.step}: {error}. The machine is probably out of memory; "
            f"resume with fewer: saccade train --resume {loop.run.path} --workers "
            f"{(loop.config.data.workers or 0) // 2}"
        ) from error
    finally:
        loop.feed.close()
        loop.parts.validation.close()
        if loop.world.is_main:
            with suppress(OSError):  # a full disk raises its own error
                write_text(loop.run.bad_file, json.dumps(loop.unreadable(), indent=1, ensure_ascii=False))


def _new_run(config: TrainConfig, out: str | Path | None, world: World, *, overwrite: bool) -> Run:
    """Create the run's folder in one process, and open it in the others."""
    path, error = None, None
    if world.is_main:
        try:
            name = f"{Path(config.model.name).name}-{Path(config.recipe or 'own').stem}-seed{config.seed}"
            if out is not None and overwrite:
                refuse_if_training(Run(Path(out).expanduser()))
            path = Run.create(out or free_name(Path("runs"), name), config, overwrite=overwrite).path
            mark(Run(path))
        except (RunError, OSError) as refusal:
            error = str(refusal)
    path, error = world.gather((path, error))[0]
    if error is not None:
        raise RunError(error)
    return Run(path)


def _restore(loop: Loop, run: Run, console: Console) -> None:
    state = load_state(run.states)
    for note in state.notes:
        console.say(note, style="yellow")
    loop.restore(state)
    if loop.world.is_main:
        write_text(run.settings, to_yaml(loop.config))  # keep settings that were changed
    if loop.ended():
        console.say(f"{run.path} is already finished (step {loop.step}); writing its weights and report again")
    else:
        console.say(f"resuming {run.path} at step {loop.step} (epoch {loop.epoch + 1})")


def _refuse_without_weights(config: TrainConfig) -> None:
    """Refuse fine-tuning without trained weights."""
    if config.requires_checkpoint and not config.model.checkpoint and not config.model.pretrained:
        raise ConfigError(
            f"the recipe {config.recipe} fine-tunes pretrained weights, but none were given; give a run, a "
            "safetensors file or a published checkpoint with --checkpoint FILE, or use timm's with --pretrained"
        )


def _refuse_other_readers(before: TrainConfig, now: TrainConfig, data: Data) -> None:
    """Refuse a different number of workers for a stream, whose order depends on it."""
    if isinstance(data.train, Stream) and before.data.workers != now.data.workers:
        raise ConfigError(
            f"data.workers={now.data.workers} was given, but the run was started with {before.data.workers}; the order "
            "of a stream depends on the number of workers, so a resumed run keeps it"
        )
