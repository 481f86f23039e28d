"""Rules on a request: its recipe, the recipe's settings for the model, and the user's own settings."""

from dataclasses import replace

from .changes import overlay
from .decisions import Change, Rule, between
from .facts import Facts, known
from .families import family_of
from .named import name_of
from .overrides import INSTEAD, lay_over
from .recipes import choose_variants
from .schema import TrainConfig
from .strength import SAY_STRENGTH


def _recipe(config: TrainConfig, facts: Facts) -> Change:
    request = known(facts.request)
    after = replace(overlay(config, request.values, source=f"recipe {request.recipe}"), recipe=request.recipe)
    return Change(between(config, after), f"the recipe {request.recipe}: {request.why}")


def _family(config: TrainConfig, facts: Facts) -> Change | None:
    request = known(facts.request)
    family = family_of(config.recipe, request.model)
    if family is None:
        return None
    after = overlay(config, family.settings, source=f"the family {family.name}")
    return Change(between(config, after), f"{request.model} is a {family.name} model")


def _variants(config: TrainConfig, facts: Facts) -> Change:
    request, after = known(facts.request), config
    for more in choose_variants(request.variants, *request.texts):
        values = {name: value for name, value in more.items() if name != "grid"}
        after = overlay(after, values, source=f"recipe {request.recipe}")
    return Change(between(config, after), f"the recipe {request.recipe} has settings for {' or '.join(request.texts)}")


def _other_model(config: TrainConfig, facts: Facts) -> Change | None:
    request = known(facts.request)
    given = request.given.get("model.name", request.trained)
    if given is None or request.full_name(given) == request.full_name(config.model.name):
        return None
    return Change({"model.options": {}}, f"the recipe's model options are for {config.model.name}, not for {given}")


def _trained_model(config: TrainConfig, facts: Facts) -> Change | None:
    request = known(facts.request)
    if request.trained is None:
        return None
    return Change({"model.name": request.trained}, f"the model of the run {request.given['model.checkpoint']}")


def _other_task(config: TrainConfig, facts: Facts) -> Change | None:
    given = known(facts.request).given.get("task")
    if given is None or config.task is None or name_of(given) == name_of(config.task):
        return None
    heads = dict.fromkeys(("model.head", "model.cpu_head"))
    return Change(heads, f"the recipe's head is for the task {config.task}, not for {given}")


def _batch_given(config: TrainConfig, facts: Facts) -> Change | None:
    given = [name for name in ("optim.batch_size", "optim.lr") if name in known(facts.request).given]
    why = f"{' and '.join(given)} was given, so neither is fitted to the number of samples"
    return Change({"optim.least_steps": None}, why) if given else None


def _strength_given(config: TrainConfig, facts: Facts) -> Change | None:
    given = [f"augment.{name}" for name in SAY_STRENGTH if f"augment.{name}" in known(facts.request).given]
    why = f"{', '.join(given)} was given, so augmentation is not fitted to the number of epochs"
    return Change({"augment.full_epochs": None}, why) if given else None


def _length_given(config: TrainConfig, facts: Facts) -> Change | None:
    given = {name: others for name, others in INSTEAD.items() if name in known(facts.request).given}
    others = [name for names in given.values() for name in names if name not in known(facts.request).given]
    return Change(dict.fromkeys(others), f"{', '.join(given)} was given instead") if others else None


def _you(config: TrainConfig, facts: Facts) -> Change:
    request = known(facts.request)
    own = config.model.plugins
    below = replace(config, model=replace(config.model, plugins=[])) if request.bare else config
    after = lay_over(below, request.given, source="", known=own)
    return Change(between(config, after), "given by you")


REQUEST_RULES = (
    Rule("recipe", "recipe", ("request",), _recipe),
    Rule("family", "family", ("request",), _family),
    Rule("variants", "recipe", ("request",), _variants),
    Rule("other-model", "you", ("request",), _other_model),
    Rule("trained-model", "model", ("request",), _trained_model),
    Rule("other-task", "you", ("request",), _other_task),
    Rule("batch-given", "you", ("request",), _batch_given),
    Rule("strength-given", "you", ("request",), _strength_given),
    Rule("length-given", "you", ("request",), _length_given),
    Rule("you", "you", ("request",), _you),
)
