"""The settings of a resumed run: its own, and the few that may be changed."""

import json
from collections.abc import Mapping
from typing import Any

from ..runs.run import Run
from ..settings import ConfigError, TrainConfig, flatten
from ..settings.decisions import Decision, decisions_between, latest, put, read_decisions
from ..settings.machine_rules import OF_MACHINE
from ..settings.overrides import lay_over
from ..tasks.hosts import Hosts
from ..tasks.opening import choose_task

# What may differ when a run is resumed: how it is computed and kept, and what a run that broke may need. A name with a
# dot at its end stands for all under it.
MAY_CHANGE = (
    "engine.",
    "keep.evaluate_every",
    "keep.every_seconds",
    "keep.every_steps",
    "keep.states",
    "keep.tensorboard",
    "data.workers",
    "data.path",
    "data.resident",
    "data.bad_limit",
    "optim.accumulate",
    "optim.clip",
    "optim.lr",
)


def resumed_config(
    run: Run, recipe: str | None, given: Mapping[str, Any], *, record: list[Decision] | None = None
) -> TrainConfig:
    """Return the settings of a resumed run, with the user's permitted changes.

    Args:
        record: collects decisions.
    """
    record = [] if record is None else record
    config = reopened_config(run, record)
    if recipe is not None and recipe != config.recipe:
        raise ConfigError(f"{run.path} was started with the recipe {config.recipe}; a resumed run keeps it")
    if "model.name" in given:
        find_model = choose_task(config.task).kind.hosts.find_model if config.task else Hosts.find_model
        given = {**given, "model.name": find_model(given["model.name"])}
    changed = lay_over(config, given, source="")
    # What is given as the run has it is no change: torchrun starts the same command again. A tuple is a list in YAML.
    before, after = ({name: json.dumps(value) for name, value in flatten(c).items()} for c in (config, changed))
    refused = [name for name in after if after[name] != before.get(name) and not _may_change(name)]
    if refused:
        raise ConfigError(
            f"{', '.join(refused)} cannot be changed in a resumed run; only {', '.join(MAY_CHANGE)} can. Start a new "
            f"run for other settings; --checkpoint {run.path} starts it from this run's weights"
        )
    record += decisions_between(config, changed, who="you", rule="resume", why="given by you on resuming")
    return changed


def reopened_config(run: Run, record: list[Decision]) -> TrainConfig:
    """Return a run's settings without those that follow from the machine, which the one that resumes it decides anew.

    Args:
        record: collects the run's other decisions.
    """
    config, defaults, decisions = run.config(), flatten(TrainConfig()), read_decisions(run.path)
    decided = latest(decisions, config)
    names = [name for name, rule in OF_MACHINE.items() if name in decided and decided[name].rule == rule]
    record += [one for one in decisions if one.setting not in names]
    return put(config, {name: defaults[name] for name in names})


def _may_change(name: str) -> bool:
    return name in MAY_CHANGE or any(name.startswith(prefix) for prefix in MAY_CHANGE if prefix.endswith("."))
