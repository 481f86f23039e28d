"""Recipes by their names or files: settings, and variants of them for some models."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Any

from .changes import nearest
from .text import drop_retired, read_yaml
from .values import ConfigError


def list_recipes() -> list[str]:
    """Return the names of the recipes that come with the package."""
    files = resources.files("saccade.recipes").iterdir()
    return sorted(file.name[:-5] for file in files if file.name.endswith(".yaml"))


def read_recipe(name: str) -> dict[str, Any]:
    """Return the settings of a recipe by its name or its file."""
    source = f"recipe {name}"
    return drop_retired(read_yaml(_text_of(name), source=source), source=source)  # it may be a run's settings


def _text_of(name: str) -> str:
    known = list_recipes()
    if name in known:
        return (resources.files("saccade.recipes") / f"{name}.yaml").read_text(encoding="utf-8")
    if Path(name).is_file():
        return Path(name).read_text(encoding="utf-8")
    raise ConfigError(
        f"unknown recipe {name!r}; choose from {', '.join(known)}, or give a YAML file{nearest(name, known)}"
    )


def split_variants(values: Mapping[str, Any], *, source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a recipe's settings without its variants, families and grid, and the variants.

    Variants are patterns of names with settings; families name a file of more, and a grid is what `tune` tries.
    """
    plain = dict(values)
    variants = plain.pop("variants", None) or {}
    plain.pop("families", None)
    plain.pop("grid", None)
    if not isinstance(variants, Mapping) or not all(isinstance(v, Mapping) for v in variants.values()):
        raise ConfigError(
            f"{source}: variants = {variants!r} was given; it takes a mapping from patterns of model names to "
            "settings, e.g. variants: {swin_*: {model: {drop_path: 0.2}}}"
        )
    return plain, {str(pattern): settings for pattern, settings in variants.items()}


def choose_variants(variants: Mapping[str, Any], *names: str) -> list[Any]:
    """Return the settings of every pattern that fits one of a model's names, in the order of the file: later win."""
    return [more for pattern, more in variants.items() if any(fnmatchcase(name, pattern) for name in names)]


def recipe_header(name: str) -> dict[str, str]:
    """Return what the comment at the head of a recipe says, by the word before the colon, such as "cost"."""
    found: dict[str, str] = {}
    last = ""
    for line in _text_of(name).splitlines():
        if not line.startswith("#"):
            break
        head = re.match(r"# (\w+): +(.*)", line)
        if head is not None:
            last = head[1]
            found[last] = head[2].strip()
        elif last:
            found[last] += f" {line[1:].strip()}"
    return found
