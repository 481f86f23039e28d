"""Arms of a comparison: what each of them changes, written in one line.

An arm is `base`, or parts joined by `+`; a part is a plug-in (`drloc:weight=0.3,pairs=32`) or settings
(`optim.lr=0.003,optim.weight_decay=0.1`). `NAME:=` before it gives it a name of its own. What it names is added to what
all arms have: the common settings, without the recipe's own plug-ins.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...building.build import parse_plugin
from ...plugins import PLUGINS
from ...settings import ConfigError, TrainConfig, flatten, overlay, read_value
from ...settings.decisions import Decision
from ...settings.families import family_of
from ...settings.named import name_of
from ...settings.overrides import ADDED, dotted, merge
from ...training.recipes import SHORT_FLAGS, configure, default_recipe
from ..run.folder import config_hash

BASE = "base"
# Short flags that all arms share, or that `+` writes.
OF_ALL = ("data", "columns", "plugins", "seed", "device", "kernels", "workers")
SHORT = {name: dotted for name, dotted in SHORT_FLAGS.items() if name not in OF_ALL}
ARM_NAME = re.compile(r"\w[\w .+-]*")


@dataclass(frozen=True)
class Arm:
    """An arm: settings and plug-ins that it adds to the common ones."""

    name: str  # what it is called
    text: str  # how it was written, without the name
    plugins: tuple[str, ...]  # put on after those that all arms have
    settings: Mapping[str, Any]  # changed in this arm, by dotted name
    recipe: str | None = None  # begun from instead of the common one

    def configure(
        self, recipe: str | None, shared: Mapping[str, Any], *, record: list[Decision] | None = None
    ) -> TrainConfig:
        """Return all settings of the arm: the recipe's, over them what all arms share, over that its own.

        Plug-ins are the arm's own, and those that all arms are given: a recipe's belong to the arms that name them, or
        that name the recipe.
        """
        shared = dotted(shared)
        try:
            self._refuse_shared(shared.get("model.plugins") or ())
            given = {**merge(shared, dotted(self.settings)), ADDED: self.plugins}
            name = self.recipe or recipe or default_recipe(shared)
            return configure(name, given, bare=self.recipe is None, record=record)
        except ConfigError as error:
            raise ConfigError(f"arm {self.name!r}: {error}") from None

    def _refuse_shared(self, plugins: Sequence[str]) -> None:
        """Refuse an arm that adds a plug-in that all arms have."""
        twice = [text for text in self.plugins if name_of(text) in map(name_of, plugins)]
        if twice:
            raise ConfigError(
                f"an arm adds {twice[0]}, but model.plugins gives {name_of(twice[0])} to all arms; remove it "
                "from model.plugins"
            )


def parse_arms(texts: Sequence[str]) -> tuple[Arm, ...]:
    """Parse the arms of a comparison; the module docstring has the syntax."""
    if isinstance(texts, str):
        raise ConfigError(f"arms={texts!r}: expected a list, such as ['base', {texts!r}]")
    arms = tuple(parse_arm(text) for text in texts)
    if len(arms) < 2:
        given = repr(arms[0].name) if arms else "nothing"
        raise ConfigError(f"arms: got {given}; a comparison needs two or more, such as 'base' and 'broadcast'")
    names = [arm.name for arm in arms]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"two arms are named {twice[0]!r}; rename one of them: 'other:={twice[0]}'")
    return arms


def reference_of(arms: Sequence[Arm]) -> Arm:
    """Return the reference arm: the one called base, or the first."""
    return next((arm for arm in arms if arm.name == BASE), arms[0])


def parse_arm(text: str) -> Arm:
    """Parse one arm."""
    name, named, body = text.partition(":=")
    name, body = (name.strip(), body.strip()) if named else ("", text.strip())
    if named and not ARM_NAME.fullmatch(name):
        raise ConfigError(f"arm {text!r}: invalid name {name!r}; names consist of letters, digits, spaces and . _ + -")
    plugins: list[str] = []
    settings: dict[str, Any] = {}
    for part in split(body, "+"):
        if part == BASE:
            continue
        head = part.partition(":")[0]
        if part and "=" not in head:
            plugins.append(_plugin(part, text))
        else:
            _add_settings(settings, part, text)
    recipe = settings.pop("recipe", None)
    return Arm(name or body, body, tuple(plugins), settings, recipe)


def split(text: str, mark: str) -> list[str]:
    """Split a text at a separator, except inside brackets, quotes or the exponent of a number."""
    parts, depth, quote, begin = [], 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        elif letter == mark and depth == 0 and not _in_number(text, place):
            parts.append(text[begin:place].strip())
            begin = place + 1
    return [*parts, text[begin:].strip()]


def _in_number(text: str, place: int) -> bool:
    """Whether a plus sign stands in something like 1e+3."""
    return bool(re.search(r"[\d.]e$", text[:place], re.IGNORECASE) and re.match(r"\d", text[place + 1 :]))


def _plugin(part: str, text: str) -> str:
    try:
        parse_plugin(part)
    except ConfigError as error:
        dotted = "; settings are joined by +, not by a comma" if re.search(r",\s*\w+\.\w+\s*=", part) else ""
        known = part.partition(":")[0].strip() in PLUGINS
        raise ConfigError(f"arm {text!r}: {error}{dotted}. {_allowed(named=known)}") from None
    return part


def _add_settings(settings: dict[str, Any], part: str, text: str) -> None:
    for item in split(part, ","):
        name, equals, value = item.partition("=")
        name = SHORT.get(name.strip(), name.strip())
        if not equals or not name:
            raise ConfigError(f"arm {text!r}: cannot parse {item!r}. {_allowed()}")
        if name == "seed":
            raise ConfigError(
                f"arm {text!r}: an arm cannot set the seed, since all arms are trained with the same seeds; set them "
                "with seeds"
            )
        if name in settings:
            raise ConfigError(f"arm {text!r} sets {name} twice; set it once")
        settings[name] = read_value(value)
        if name == "recipe":
            continue
        try:
            overlay(TrainConfig(), {name: settings[name]}, source=f"arm {text!r}")
        except ConfigError as error:
            raise ConfigError(f"{error}. {_allowed()}") from None


def _allowed(*, named: bool = True) -> str:
    """Describe the syntax of an arm, with the names of plug-ins unless they are listed already."""
    plugins = f"plug-ins ({', '.join(sorted(PLUGINS))})" if named else "plug-ins"
    return (
        f"An arm is 'base', or {plugins} and settings (name=value; {', '.join([*SHORT, 'recipe'])} or a dotted name "
        "such as optim.weight_decay) joined by +, optionally with 'NAME:=' in front"
    )


def changed(reference: TrainConfig, config: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Return the settings, except the seed, in which two configurations differ: name to both values."""
    first, second = flatten(reference), flatten(config)
    return {name: (first[name], second[name]) for name in first if first[name] != second[name] and name != "seed"}


def find_twins(configs: Mapping[str, TrainConfig], reference: str, *, accepted: Collection[str] = ()) -> dict[str, str]:
    """Return for every arm the first one that has the same settings, the reference before others; they share runs.

    Recipes that fit a family of models to few or small images in other ways make no other settings, and are refused,
    unless the comparison already has both arms (`accepted`).
    """
    seen: dict[str, str] = {}
    order = [reference, *(name for name in configs if name != reference)]
    twins = {name: seen.setdefault(config_hash(configs[name]), name) for name in order}
    for name, twin in twins.items():
        if name in accepted and twin in accepted:
            continue
        recipes, model = [configs[one].recipe for one in (twin, name)], configs[name].model.name
        found = [family_of(recipe, model) for recipe in recipes]
        fitting = [None if one is None else replace(one, name="", settings={}, measured="") for one in found]
        if fitting[0] != fitting[1]:
            raise ConfigError(
                f"arms {twin!r} and {name!r} have the same settings, but their recipes {recipes[0]} and {recipes[1]} "
                f"name other `families`, which fit {model} to few or small images; give both recipes the same "
                "families, or compare them in two comparisons"
            )
    return twins
