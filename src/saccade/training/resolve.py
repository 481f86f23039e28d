"""Resolve the settings that depend on the task, the data and the device."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ..data.open import Data
from ..data.spec import InputSpec
from ..runs.weights import describe
from ..settings import ConfigError, TrainConfig, short
from ..settings.decisions import Decision, decide
from ..settings.facts import Facts, Weights
from ..settings.fitting import FOUND
from ..settings.machine_rules import MEMORY_RULES
from ..settings.overrides import names_of
from ..tasks.opening import TaskChoice, open_samples
from .defaults import notes_on
from .facts import gather_facts, machine_facts, model_cfg
from .families import family_notes
from .parallel import local_device
from .recipes import configure, gather_settings, variant_notes
from .setup import sizes_in_memory
from .unread import Situation, refuse_unread


def resolve(
    config: TrainConfig,
    choice: TaskChoice,
    data: Data,
    device: torch.device,
    *,
    given: Iterable[str] = (),
    resumed: bool = False,
    record: list[Decision] | None = None,
) -> tuple[TrainConfig, InputSpec]:
    """Resolve the settings that depend on the task, the data and the device.

    Args:
        given: settings given by the user, by dotted name; unused ones are refused.
        resumed: whether the run is resumed: it keeps its model, even if its initial weights now describe another one.
        record: collects decisions.
    """
    _refuse_unknown_kernels(config.engine.kernels)
    asked, left, decided = config, list[str](), list[Decision]()
    machine = machine_facts(device)
    config = decide(
        config, Facts(resumed=resumed, machine=machine), choice.kind.task_rules(), record=decided, remarks=left
    )
    facts = gather_facts(config, choice, data, device, resumed=resumed)
    assert facts.data is not None
    assert facts.model is not None
    weights, array = facts.model.weights, facts.data.array
    resolved = decide(config, facts, FOUND, record=decided)
    size, mean, std = resolved.data.img_size, resolved.data.mean, resolved.data.std
    if facts.model.side is None:  # not used, but a spec has them
        size, mean, std = size or 224, mean or facts.model.mean, std or facts.model.std
    assert size is not None
    assert mean is not None
    assert std is not None
    channels = (3 if array is None else array[1]) if weights is None else weights.in_chans
    if not len(mean) == len(std) == channels:
        raise ConfigError(
            f"data.mean and data.std have {len(mean)} and {len(std)} numbers, but the images have {channels} "
            "channels; give one number per channel"
        )
    refuse_unread(given, Situation(asked, resolved, choice, data, device))
    spec = InputSpec(outputs=data.outputs, in_chans=channels, img_size=size, mean=mean, std=std, task=choice.kind.name)
    spec.shorter = size if array is not None else _shorter(resolved, spec)  # arrays are not cropped
    choice.complete_spec(spec, data, resolved.model)
    if resolved.data.resident == "auto" and choice.kind.reader.reads != "text":
        known = replace(facts.data, decoded=sizes_in_memory(resolved, choice.kind, data, spec))
        resolved = decide(resolved, replace(facts, data=known), MEMORY_RULES, record=decided)
    describe(resolved.model, spec)  # refuse models that cannot be saved before training
    spec.notes += [*left, *variant_notes(config), *_overridden(config, weights), *family_notes(config, decided)]
    spec.notes += notes_on(config, resolved, side=facts.data.side, samples=facts.data.samples)
    cut = {one.setting: one for one in decided if one.rule == "short-warm-up"}
    spec.notes += [
        f"{name} = {one.value} instead of {one.before}: {one.why}" for name, one in cut.items() if name in given
    ]
    if channels == 1 and (array is None or array[1] != 1):
        spec.notes.append(
            f"{config.model.checkpoint} was trained on grayscale images: images are converted to grayscale for it"
        )
    if record is not None:
        record += decided
    return resolved, spec


def resolved_config(recipe: str | None, settings: Mapping[str, Any], **named: Any) -> TrainConfig:
    """Return the settings that `train` would use, except for epochs fitted to a time budget.

    Args:
        recipe: name or file.
        settings: settings by dotted name.
        named: settings by short name, see `gather_settings`.
    """
    given = gather_settings(settings, **named)
    config = configure(recipe, given)
    try:
        choice, data = open_samples(config.task, config.data)
    except ConfigError:
        if config.data.path:
            raise
        return config  # the recipe's task needs a dataset, and none is given
    return resolve(config, choice, data, local_device(config.engine.device), given=names_of(given))[0]


def _refuse_unknown_kernels(use: str) -> None:
    """Refuse names of kernels that there are none of; all kernels are imported only where some are named."""
    if use in ("auto", "off") and not os.environ.get("SACCADE_KERNELS"):
        return
    from ..kernels import table
    from ..kernels.switch import chosen

    chosen(use, table.names())


def _overridden(config: TrainConfig, known: Weights | None) -> list[str]:
    """Return the options that differ from those that the weights were trained with."""
    before = {} if known is None else known.options
    given = config.model.options
    return [
        f"model.options.{name} = {short(repr(given[name]))} was given; the weights were trained with "
        f"{short(repr(value))}"
        for name, value in before.items()
        if name in given and given[name] != value
    ]


def _shorter(config: TrainConfig, spec: InputSpec) -> int:
    """Return the resize length before the centre crop, as the model's authors chose it."""
    return round(spec.img_size / float(model_cfg(config.model.name).get("crop_pct") or 1.0))
