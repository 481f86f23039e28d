"""From a recipe and the user's settings to the complete settings of a run."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from ..building.build import parse_plugin
from ..building.checkpoint import model_of
from ..data.table import parse_columns
from ..settings import ConfigError, TrainConfig, overlay
from ..settings.decisions import Decision, decide
from ..settings.facts import Facts, Request
from ..settings.overrides import ADDED, dotted
from ..settings.recipes import choose_variants, read_recipe, split_variants
from ..settings.request_rules import REQUEST_RULES
from ..tasks import Task
from ..tasks.identity import identify
from ..tasks.opening import choose_task

# Short names of settings and their dotted names; `compare` gives some of them to arms.
SHORT_FLAGS = {
    "data": "data.path",
    "columns": "data.columns",
    "task": "task",
    "model": "model.name",
    "plugins": ADDED,
    "pretrained": "model.pretrained",
    "checkpoint": "model.checkpoint",
    "group": "data.group",
    "epochs": "schedule.epochs",
    "batch_size": "optim.batch_size",
    "lr": "optim.lr",
    "img_size": "data.img_size",
    "seed": "seed",
    "device": "engine.device",
    "kernels": "engine.kernels",
    "workers": "data.workers",
}


FINETUNE = "finetune"


def gather_settings(settings: Mapping[str, Any] | None = None, **short: Any) -> dict[str, Any]:
    """Return settings by dotted name from short names; None and empty plug-ins count as not given.

    Args:
        settings: other settings by dotted name; a different value for a setting also given by short name is refused.
        short: settings by short name.
    """
    given = {SHORT_FLAGS[name]: value for name, value in short.items() if value is not None}
    if "model.name" in given and not isinstance(given["model.name"], str):
        raise ConfigError(
            f"model={type(given['model.name']).__name__} was given; give the name of a saccade or timm model, so "
            "that the run can be repeated and resumed. Register your own model under a name with "
            "timm.models.register_model"
        )
    if "data.columns" in given:
        given["data.columns"] = parse_columns(given["data.columns"])
    if ADDED in given:
        plugins = given[ADDED]
        given[ADDED] = [plugins] if isinstance(plugins, str) else list(plugins)
        if not given[ADDED]:
            del given[ADDED]
    more = dotted(settings or {})
    for short_name, name in SHORT_FLAGS.items():
        if name in given and name in more and given[name] != more[name]:
            raise ConfigError(
                f"{short_name}={given[name]} and the setting {name}={more[name]} were given, but they are the same; "
                "give one of them"
            )
    return given | more


def configure(
    recipe: str | None,
    given: Mapping[str, Any],
    *,
    bare: bool = False,
    why: str = "named by you",
    record: list[Decision] | None = None,
) -> TrainConfig:
    """Return a recipe's settings for the model, overridden by the given ones; a run's checkpoint implies its model.

    Args:
        bare: remove the recipe's plug-ins; a plug-in given by name still has the recipe's options.
        why: reason for the recipe, if one is named.
        record: collects decisions.
    """
    given = dotted(given)
    facts = Facts(request=make_request(recipe, given, bare=bare, why=why))
    config = decide(TrainConfig(), facts, REQUEST_RULES, record=record)
    for text in config.model.plugins:
        parse_plugin(text)
    if config.task is not None:
        choose_task(config.task)
    return config


def make_request(
    recipe: str | None, given: Mapping[str, Any], *, bare: bool = False, why: str = "named by you"
) -> Request:
    """Return the request that settings are decided from: recipe and given settings."""
    name = recipe or default_recipe(given)
    known = None if "model.name" in given else model_of(given.get("model.checkpoint"))
    values, variants = split_variants(read_recipe(name), source=f"recipe {name}")
    plain = overlay(TrainConfig(), values, source=f"recipe {name}")
    task = given.get("task") or plain.task
    kind = choose_task(task).kind if task else Task
    find_model = kind.hosts.find_model
    full = find_model(given.get("model.name") or known or plain.model.name)
    if recipe is None:
        trained = given.get("model.checkpoint") or given.get("model.pretrained")
        why = "the default with pretrained weights" if trained else f"the default of the task {task or 'classify'}"
        why += " for such a model" if name in kind.hosts.recipes.values() else ""
    texts = variant_names(task, full)
    return Request(name, values, variants, why, given, full, find_model, texts, known, bare)


def default_recipe(given: Mapping[str, Any]) -> str:
    """Return the default recipe: the task's own, also of a kind of models, or `finetune` with trained weights."""
    kind = choose_task(given["task"]).kind if given.get("task") else Task
    recipes, model = kind.hosts.recipes, given.get("model.name")
    host = identify(model).kind if recipes and model else ""
    if own := [name for pattern, name in recipes.items() if fnmatchcase(host, pattern)]:
        return own[0]
    if not (given.get("model.checkpoint") or given.get("model.pretrained")):
        return kind.recipe
    return kind.finetuning or (FINETUNE if kind.recipe == Task.recipe else kind.recipe)


def grid_of(config: TrainConfig) -> Any:
    """Return the `grid` of the recipe, including the model's variants; None if it has none.

    `saccade tune` searches it instead of its default values; training ignores it.
    """
    if config.recipe is None:
        return None
    values = read_recipe(config.recipe)
    _, variants = split_variants(values, source=f"recipe {config.recipe}")
    names = variant_names(config.task, config.model.name)
    grids = [values.get("grid"), *(more.get("grid") for more in choose_variants(variants, *names))]
    found = [grid for grid in grids if grid is not None]
    if not all(isinstance(grid, Mapping) for grid in found):
        return found[-1]  # its reader reports what is wrong
    return {name: values for grid in found for name, values in grid.items()} or None


def variant_names(task: str | None, model: str) -> tuple[str, ...]:
    """Return the names to match with a recipe's patterns: a timm name, or type and name of a Hugging Face model."""
    if task is not None and choose_task(task).kind.hosts.builds(model):
        return identify(model).texts
    return (model.split(".")[0],)  # without timm's tag


def variant_notes(config: TrainConfig) -> list[str]:
    """Return a note if the model's type, which selects a recipe's variant, was guessed from its name."""
    if (
        config.recipe is None
        or config.task is None
        or not choose_task(config.task).kind.hosts.builds(config.model.name)
    ):
        return []
    try:
        _, variants = split_variants(read_recipe(config.recipe), source=f"recipe {config.recipe}")
    except (ConfigError, OSError):  # the recipe of a run from another machine
        return []
    found = identify(config.model.name)
    if found.known or not any("/" in pattern for pattern in variants):
        return []
    guess = (
        f"treated as a {found.kind}, judging by its name"
        if found.kind
        else "its name does not reveal its kind, so the common settings apply"
    )
    return [
        f"config.json of {config.model.name} could not be read, so the recipe's settings for its kind had to be "
        f"guessed: {guess}"
    ]
