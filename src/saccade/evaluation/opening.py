"""Open the models and the dataset of an evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from ..building.loading import LoadedModel, find_target, open_device, open_model
from ..data.feed import Batch
from ..data.source import Source
from ..data.spec import InputSpec
from ..data.split import identity
from ..data.table import columns_as_trained, parse_columns
from ..kernels import apply
from ..runs.run import Run
from ..settings import DataConfig
from ..settings.named import combine, texts_of
from ..tasks import Task
from ..tasks.opening import TaskChoice, choose_task, open_samples


class EvaluationError(ValueError):
    """The arguments cannot be evaluated."""


@dataclass(frozen=True)
class EvaluatedModel:
    """A model under evaluation."""

    name: str  # unique name in the result
    target: str  # argument that it was opened by
    loaded: LoadedModel
    task: Task  # the task with the options of its run
    asked_as: str  # the task with its options, as written in settings

    @property
    def spec(self) -> InputSpec:
        """The model's inputs and outputs."""
        return self.loaded.spec

    @property
    def run(self) -> Run | None:
        """The model's run, if it is from one."""
        return None if self.loaded.folder is None else Run(self.loaded.folder)

    def ask(self, images: Tensor) -> Tensor:
        """Return raw outputs, B, ... float32, for images, B, C, H, W: bytes, or floats from 0 to 1."""
        return self._finite(self.task({"image": self.loaded.normalize(images)})["output"].float())

    def answer(self, batch: Batch, images: Tensor | None) -> tuple[dict[str, Tensor], Batch]:
        """Return the model's answer to a batch with replaced images, and that batch."""
        device = self.loaded.device
        asked = {name: part if name == "place" else part.to(device) for name, part in batch.items() if name != "image"}
        if images is not None:
            asked["image"] = self.loaded.normalize(images)
        answers = self.task.answer(asked)
        self._finite(answers["output"])
        return answers, asked

    def _finite(self, output: Tensor) -> Tensor:
        if not output.isfinite().all():
            raise EvaluationError(f"{self.name} returns non-finite values; its training diverged")
        return output


@dataclass(frozen=True)
class EvaluatedSet:
    """The samples of an evaluation."""

    source: Source  # the whole dataset
    name: str
    fingerprint: str
    notes: tuple[str, ...]  # remarks for the reader
    places: np.ndarray | None = None  # indices of the chosen samples; None: all

    def chosen(self) -> Source:
        """Return the source of the chosen samples."""
        return self.source if self.places is None else self.source.subset(self.places)


def open_models(
    targets: Sequence[str | Path], *, device: str, task: str | None = None, own: bool = False
) -> list[EvaluatedModel]:
    """Open models of one task by run folder, weights or timm name.

    Args:
        task: task name with options that replace those of the training.
        own: whether the runs' own validation samples are used, which are read as in training.
    """
    if not targets:
        raise EvaluationError("nothing to evaluate; give a run directory, weights or the name of a timm model")
    known = [find_target(target) for target in targets]  # find all of them before the first is opened
    open_device(device)
    found: list[EvaluatedModel] = []
    for target, opened in zip(targets, known, strict=True):
        loaded = open_model(opened, device=device)
        loaded.model.eval().requires_grad_(False)  # attacks only need the gradient of images
        apply(loaded.model, "infer")
        trained_as = None if loaded.folder is None else Run(loaded.folder).config().task
        usual = trained_as or loaded.spec.task
        asked_as = usual if task is None else combine(usual, task) or usual
        choice = choose_task(asked_as)
        if choice.kind is not loaded.task:
            raise EvaluationError(f"task={task}, but {target} was trained for the task {loaded.spec.task}")
        given = [] if task is None else list(texts_of(task))
        _refuse_idle(choice, given, own=own)
        options = choice.options
        if trained_as is None:  # a file of weights has its own task options
            kept = choice.reader.options_of(loaded.spec)
            options = replace(kept, **{name: getattr(options, name) for name in given}) if given else kept
        asked = loaded.task.build(loaded.model, loaded.spec, options=options)
        name, number = loaded.name, 2
        while name in {model.name for model in found}:
            name, number = f"{loaded.name} ({number})", number + 1
        found.append(EvaluatedModel(name, str(target), loaded, asked.to(loaded.device).eval(), asked_as))
    for other in found[1:]:
        if other.spec.task != found[0].spec.task:
            raise EvaluationError(
                f"{found[0].name} was trained for the task {found[0].spec.task} and {other.name} for "
                f"{other.spec.task}; compared runs must have the same task: evaluate them one by one"
            )
    return found


def _refuse_idle(choice: TaskChoice, given: Sequence[str], *, own: bool) -> None:
    """Refuse task options that have no effect on inference."""
    asked, read = choice.kind.asked_by, choice.kind.reader.read_by
    for name in given if asked is not None else ():
        if name not in (*(asked or ()), *read):
            allowed = ", ".join((*(asked or ()), *read)) or "none"
            raise EvaluationError(
                f"the option {name} of the task {choice} has no effect on a trained model; options that have: {allowed}"
            )
        if own and name in read:
            raise EvaluationError(
                f"the option {name} of the task {choice} controls how samples are read, and a run's own samples are "
                "read as in its training; give other samples with --data, or remove it"
            )


def open_set(
    models: Sequence[EvaluatedModel], data: str | None, columns: str | Mapping[str, str] | None = None
) -> EvaluatedSet:
    """Open the given dataset, or the runs' validation samples.

    Args:
        data: dataset as for `saccade train`; its validation split if it has one, else all samples.
        columns: column mapping of a list; default: that of the runs' training.
    """
    if columns is not None and data is None:
        raise EvaluationError(f"columns={columns} has no effect without a list; give one with --data")
    if data is not None:
        named = _trained_columns(models, data) if columns is None else parse_columns(columns)
        _, opened = open_samples(models[0].asked_as, DataConfig(path=data, val=data, columns=named))
        return EvaluatedSet(opened.val, opened.name, opened.val.fingerprint(), opened.notes)
    own = [_own_set(model) for model in models]
    for model, found in zip(models[1:], own[1:], strict=True):
        if found.fingerprint != own[0].fingerprint:
            raise EvaluationError(
                f"{models[0].name} was validated on {len(own[0].source)} samples of {own[0].name}, {model.name} on "
                f"{len(found.source)} different samples of {found.name}; give a dataset for all runs with --data"
            )
    notes = dict.fromkeys(note for found in own for note in found.notes)
    return EvaluatedSet(own[0].source, own[0].name, own[0].fingerprint, tuple(notes))


def _trained_columns(models: Sequence[EvaluatedModel], data: str) -> dict[str, str]:
    """Return the column mapping that the models were trained with."""
    found = [columns_as_trained(data, model.run.config().data.columns) for model in models if model.run is not None]
    other = next((columns for columns in found if columns != found[0]), None)
    if other is not None:
        raise EvaluationError(
            f"the runs were trained on different columns of a list ({found[0] or 'none named'} and "
            f"{other or 'none named'}); give --columns"
        )
    return found[0] if found else {}


def _own_set(model: EvaluatedModel) -> EvaluatedSet:
    if model.run is None:
        raise EvaluationError(f"{model.target} is not a run, so it has no validation split of its own; give --data")
    config = model.run.config()
    choice, data = open_samples(config.task, config.data)
    if choice.kind is not model.loaded.task:
        raise EvaluationError(
            f"{model.name} was trained for the task {model.spec.task}, but {data.name} is now a dataset for "
            f"{choice}; give samples of its task with --data"
        )
    fingerprint, notes = data.val.fingerprint(), list(data.notes)
    stored = model.run.summary().get("validation", {}).get("fingerprint") if model.run.finished() else None
    if stored is None:
        notes.append(f"{model.name} does not record which samples it was validated on")
    elif stored != fingerprint:
        notes.append(
            f"{model.name} was validated on different samples than {data.name} now has (fingerprint {stored[:12]} "
            f"against {fingerprint[:12]}); some of these may have been used for training"
        )
    return EvaluatedSet(data.val, data.name, fingerprint, tuple(notes))


def choose(source: Source, places: np.ndarray, *, limit: int | None, seed: int) -> np.ndarray:
    """Return the indices of at most `limit` samples, stratified by target and chosen by name and seed."""
    if limit is None or limit >= len(places):
        return places
    if limit < 1:
        raise EvaluationError(f"limit {limit}: it must be at least 1; omit it for all samples")
    keys = np.array([identity(source.name(int(place)), seed) for place in places], dtype=np.int64)
    strata = source.targets.strata()[places]
    order = np.lexsort((keys, strata))
    rank = np.empty(len(places), dtype=np.int64)  # rank within the stratum
    starts = np.flatnonzero(np.diff(strata[order], prepend=-1))
    rank[order] = np.arange(len(places)) - np.repeat(starts, np.diff([*starts, len(places)]))
    return np.sort(places[np.lexsort((keys, rank))[:limit]])
