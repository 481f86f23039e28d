"""Rules that tasks have in common: settings that make no sense for one are left out, others are its own."""

import warnings
from collections.abc import Callable, Sequence

from ..settings import ConfigError, TrainConfig, flatten, leave_out
from ..settings.decisions import Change, Rule, between, put
from ..settings.facts import Facts
from .hosting import host_settings, hosted_name


def left_out(names: Sequence[str], reason: str) -> Rule:
    """Return the rule that leaves some augmentation and smoothing of labels out."""

    def decide(config: TrainConfig, _: Facts) -> Change:
        after, remarks = leave_out(config, names, reason)
        return Change(between(config, after), reason, "; ".join(remarks))

    return Rule("left-out", "task", (), decide)


def own(name: str, why: str, change: Callable[[TrainConfig], TrainConfig]) -> Rule:
    """Return a rule that changes settings as a function does."""
    return Rule(name, "task", (), lambda config, _: Change(between(config, change(config)), why))


def refused(setting: str, why: str) -> Rule:
    """Return a rule that refuses a setting other than its default."""

    def decide(config: TrainConfig, _: Facts) -> None:
        if flatten(config)[setting] != flatten(TrainConfig())[setting]:
            raise ConfigError(f"{setting} was given; {why}: leave it out")

    return Rule(setting.rpartition(".")[2].replace("_", "-"), "task", (), decide)


def default_head(head: str) -> Rule:
    """Return the rule that gives a timm model a head where none is named."""
    return of_timm(
        own(
            "default-head",
            "the task's default",
            lambda config: put(config, {"model.head": config.model.head or head}),
        )
    )


def of_timm(rule: Rule) -> Rule:
    """Return a rule for models that are none of Hugging Face's."""
    return Rule(
        rule.name,
        rule.who,
        rule.needs,
        lambda config, facts: rule.decide(config, facts) if hosted_name(config.model.name) is None else None,
    )


def adapted_by(task: str, adapt: Callable[[TrainConfig], tuple[TrainConfig, list[str]]]) -> Rule:
    """Return the rule of a task of another package that has a method `adapt` of its own, with a warning."""
    warnings.warn(
        f"the task {task} overrides `adapt`; give it `rules = (...)` instead, see docs/tasks.md", DeprecationWarning, 2
    )

    def decide(config: TrainConfig, _: Facts) -> Change:
        after, remarks = adapt(config)
        return Change(between(config, after), "; ".join(remarks) or f"what the task {task} needs", "; ".join(remarks))

    return Rule(f"task-{task}", "task", (), decide)


HUGGING_FACE = own(
    "hugging-face",
    "the model is one of Hugging Face, which has its own head, options and normalisation",
    lambda config: host_settings(config) or config,
)
