"""Rules on what was asked for: the recipe, what it says of the model, and what the user gave."""

from dataclasses import replace

from .changes import overlay
from .decisions import Change, Rule, between
from .facts import Asked, Facts
from .families import family_of
from .named import name_of
from .overrides import INSTEAD, lay_over
from .recipes import choose_variants
from .schema import TrainConfig
from .strength import SAY_STRENGTH


def _asked(facts: Facts) -> Asked:
    assert facts.asked is not None
    return facts.asked


def _recipe(config: TrainConfig, facts: Facts) -> Change:
    asked = _asked(facts)
    after = replace(overlay(config, asked.values, source=f"recipe {asked.recipe}"), recipe=asked.recipe)
    return Change(between(config, after), f"the recipe {asked.recipe}: {asked.why}")


def _family(config: TrainConfig, facts: Facts) -> Change | None:
    asked = _asked(facts)
    family = family_of(config.recipe, asked.model)
    if family is None:
        return None
    after = overlay(config, family.settings, source=f"the family {family.name}")
    return Change(between(config, after), f"{asked.model} is a {family.name} model")


def _variants(config: TrainConfig, facts: Facts) -> Change:
    asked, after = _asked(facts), config
    for more in choose_variants(asked.variants, *asked.texts):
        values = {name: value for name, value in more.items() if name != "grid"}
        after = overlay(after, values, source=f"recipe {asked.recipe}")
    return Change(between(config, after), f"the recipe {asked.recipe} has settings for {' or '.join(asked.texts)}")


def _other_model(config: TrainConfig, facts: Facts) -> Change | None:
    asked = _asked(facts)
    given = asked.given.get("model.name", asked.trained)
    if given is None or asked.full_name(given) == asked.full_name(config.model.name):
        return None
    return Change({"model.options": {}}, f"the recipe's model options are for {config.model.name}, not for {given}")


def _trained_model(config: TrainConfig, facts: Facts) -> Change | None:
    asked = _asked(facts)
    if asked.trained is None:
        return None
    return Change({"model.name": asked.trained}, f"the model of the run {asked.given['model.checkpoint']}")


def _other_task(config: TrainConfig, facts: Facts) -> Change | None:
    given = _asked(facts).given.get("task")
    if given is None or config.task is None or name_of(given) == name_of(config.task):
        return None
    heads = dict.fromkeys(("model.head", "model.cpu_head"))
    return Change(heads, f"the recipe's head is for the task {config.task}, not for {given}")


def _batch_given(config: TrainConfig, facts: Facts) -> Change | None:
    given = [name for name in ("optim.batch_size", "optim.lr") if name in _asked(facts).given]
    why = f"{' and '.join(given)} was given, so neither is fitted to the number of samples"
    return Change({"optim.least_steps": None}, why) if given else None


def _strength_given(config: TrainConfig, facts: Facts) -> Change | None:
    given = [f"augment.{name}" for name in SAY_STRENGTH if f"augment.{name}" in _asked(facts).given]
    why = f"{', '.join(given)} was given, so augmentation is not fitted to the number of epochs"
    return Change({"augment.full_epochs": None}, why) if given else None


def _length_given(config: TrainConfig, facts: Facts) -> Change | None:
    given = {name: others for name, others in INSTEAD.items() if name in _asked(facts).given}
    others = [name for names in given.values() for name in names if name not in _asked(facts).given]
    return Change(dict.fromkeys(others), f"{', '.join(given)} was given instead") if others else None


def _you(config: TrainConfig, facts: Facts) -> Change:
    asked = _asked(facts)
    own = config.model.plugins
    below = replace(config, model=replace(config.model, plugins=[])) if asked.bare else config
    after = lay_over(below, asked.given, source="", known=own)
    return Change(between(config, after), "given by you")


ASKED = (
    Rule("recipe", "recipe", ("asked",), _recipe),
    Rule("family", "family", ("asked",), _family),
    Rule("variants", "recipe", ("asked",), _variants),
    Rule("other-model", "you", ("asked",), _other_model),
    Rule("trained-model", "model", ("asked",), _trained_model),
    Rule("other-task", "you", ("asked",), _other_task),
    Rule("batch-given", "you", ("asked",), _batch_given),
    Rule("strength-given", "you", ("asked",), _strength_given),
    Rule("length-given", "you", ("asked",), _length_given),
    Rule("you", "you", ("asked",), _you),
)
