"""The commands at the head of every recipe: typed as they stand, they train by that recipe's settings."""

import re
import shlex
from argparse import ArgumentParser
from importlib import resources

import pytest

from saccade.commands.train import flags
from saccade.settings import flatten, overlay, parse_settings
from saccade.settings.named import combine
from saccade.settings.overrides import INSTEAD, names_of
from saccade.settings.recipes import list_recipes
from saccade.training.recipes import SHORT_FLAGS, configure, gather_settings


def read_commands(recipe):
    """Return the commands at the head of a recipe, without the remarks in brackets behind them."""
    text = (resources.files("saccade.recipes") / f"{recipe}.yaml").read_text(encoding="utf-8")
    head = re.search(r"# command:(.*?)# hardware:", text, re.DOTALL)[1]
    lines = [line.strip("# ").strip() for line in head.splitlines()]
    return [re.sub(r" \(.*\)$", "", line) for line in lines if line]


COMMANDS = [(recipe, command) for recipe in list_recipes() for command in read_commands(recipe)]


def typed(command):
    """Return the recipe and the settings that a command gives."""
    words = shlex.split(command)
    assert "train" in words
    parser = ArgumentParser()
    flags(parser)
    args = parser.parse_args(words[words.index("train") + 1 :])
    short = {name: getattr(args, name) for name in SHORT_FLAGS if name not in ("plugins", "data")}
    return args.recipe, gather_settings(**short, plugins=args.plugin or []) | parse_settings(args.set or [])


def test_every_recipe_has_a_command():
    assert {recipe for recipe, _ in COMMANDS} == set(list_recipes())


@pytest.mark.parametrize(("recipe", "command"), COMMANDS, ids=[command for _, command in COMMANDS])
def test_a_command_gives_the_recipes_settings_but_for_what_it_names(recipe, command):
    name, given = typed(command)
    model = {key: value for key, value in given.items() if key == "model.name"}
    found, own = configure(name, given), configure(recipe, model)
    assert found.recipe == recipe
    here, there = flatten(found), flatten(own)
    named = {*names_of(given), *(other for key in given for other in INSTEAD.get(key, ()))}
    named |= {"optim.least_steps"} if {"optim.lr", "optim.batch_size"} & given.keys() else set()
    named |= {"model.cpu_head"} if "model.head" in given else set()  # a named head is that of any machine
    assert {key for key in here if here[key] != there[key]} <= named
    assert found.task == (combine(own.task, given.get("task")) if "task" in given else own.task)
    for text in own.model.plugins:  # what is put on beside a recipe's own takes none of it away
        kept = next(one for one in found.model.plugins if one.startswith(text.partition(":")[0]))
        assert combine(text, kept) == kept
        assert all(option in kept for option in text.partition(":")[2].split(","))


@pytest.mark.parametrize("recipe", [name for name in list_recipes() if configure(name, {}).task])
def test_naming_a_recipes_task_keeps_its_options(recipe):
    own = configure(recipe, {})
    name = own.task.partition(":")[0]
    assert configure(recipe, {"task": name}) == own
    head = own.model.head and own.model.head.partition(":")[0]
    assert configure(recipe, {"model.head": head}) == overlay(own, {"model.cpu_head": None} if head else {})
