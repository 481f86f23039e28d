"""Shared rules of tasks on settings."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..settings import AugmentConfig, ConfigError, TrainConfig, flatten, leave_out
from ..settings.decisions import Change, Rule, between, put
from ..settings.facts import Facts
from .hosting import has_weights, normalisation
from .hosts import hosted_name
from .huggingface import refuse_checkpoint


def left_out(names: Sequence[str], reason: str) -> Rule:
    """Return the rule that disables the given augmentation and label smoothing."""

    def decide(config: TrainConfig, _: Facts) -> Change:
        after, remarks = leave_out(config, names, reason)
        return Change(between(config, after), reason, "; ".join(remarks))

    return Rule("left-out", "task", (), decide)


def own(name: str, why: str, change: Callable[[TrainConfig], TrainConfig]) -> Rule:
    """Return a rule that changes settings by a function."""
    return Rule(name, "task", (), lambda config, _: Change(between(config, change(config)), why))


def refused(setting: str, why: str) -> Rule:
    """Return a rule that refuses a setting other than its default."""

    def decide(config: TrainConfig, _: Facts) -> None:
        if flatten(config)[setting] != flatten(TrainConfig())[setting]:
            raise ConfigError(f"{setting} was given, but {why}; leave it out")

    return Rule(setting.rpartition(".")[2].replace("_", "-"), "task", (), decide)


def default_head(head: str, light: str) -> Rule:
    """Return the rule that gives a timm model a head where none is named, on a CPU a light one."""

    def decide(config: TrainConfig, facts: Facts) -> Change | None:
        if config.model.head is not None:
            return None
        if facts.machine is None or facts.machine.gpu:
            return Change({"model.head": head}, "the task's default")
        return Change({"model.head": light}, "the task's default on a CPU")

    return of_timm(Rule("default-head", "task", (), decide))


def of_timm(rule: Rule) -> Rule:
    """Restrict a rule to timm models."""
    return Rule(
        rule.name,
        rule.who,
        rule.needs,
        lambda config, facts: rule.decide(config, facts) if hosted_name(config.model.name) is None else None,
    )


def adapted_by(task: str, adapt: Callable[[TrainConfig], tuple[TrainConfig, list[str]]]) -> Rule:
    """Return a rule for another package's task with its own method `adapt`, with a deprecation warning."""
    warnings.warn(
        f"the task {task} overrides `adapt`; give it `rules = (...)` instead, see docs/tasks.md", DeprecationWarning, 2
    )

    def decide(config: TrainConfig, _: Facts) -> Change:
        after, remarks = adapt(config)
        return Change(between(config, after), "; ".join(remarks) or f"required by the task {task}", "; ".join(remarks))

    return Rule(f"task-{task}", "task", (), decide)


def _for_hosted(config: TrainConfig) -> TrainConfig:
    name = hosted_name(config.model.name)
    if name is None:
        return config
    refuse_checkpoint(config.model)
    model: dict[str, Any] = {
        "head": None,
        "cpu_head": None,
        "options": {},
        "drop_path": None,
        "pretrained": has_weights(name),
    }
    mean, std = normalisation(name) or (config.data.mean, config.data.std)
    data = {} if config.data.mean is not None else {"data.mean": mean, "data.std": std}
    own_engine = {"engine.compile": False, "engine.graphs": False}
    return put(config, {**{f"model.{key}": value for key, value in model.items()}, **data, **own_engine})


def without_images(config: TrainConfig, **engine: Any) -> TrainConfig:
    """Return settings of a model of Hugging Face for texts, without what is made for images and timm's models."""
    refuse_checkpoint(config.model)
    return replace(
        config,
        model=replace(config.model, options={}, drop_path=None, pretrained=True),
        augment=AugmentConfig(crop="none", flip=0.0),
        engine=replace(config.engine, channels_last=False, **engine),
    )


HUGGING_FACE = own(
    "hugging-face",
    "the model is a Hugging Face model, which has its own head, options and normalisation",
    _for_hosted,
)
