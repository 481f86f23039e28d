"""Model families, with the settings that a recipe uses for each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

from .recipes import read_recipe
from .text import read_yaml
from .values import ConfigError


@dataclass(frozen=True)
class Family:
    """A family of models that are trained with the same settings."""

    name: str  # of the family
    settings: Mapping[str, Any]  # laid over a recipe's
    measured: str  # what they come from
    patches: int | None = None  # along a side of small images; None leaves the model's own
    strides: int | None = None  # steps between patches along a side of small images, of models whose patches overlap
    options: Mapping[str, Any] = field(default_factory=dict)  # of the model's constructor, for small images
    only: str = "*"  # pattern of the names that patches and options are for
    few_rate: float | None = None  # for so few images that batches are made smaller; None is that of the settings


def family_of(recipe: str | None, model: str) -> Family | None:
    """Return the family of a model that a recipe has settings for; None if it has none."""
    for name, about in _families(recipe).items():
        if any(fnmatchcase(model.split(".")[0], pattern) for pattern in about["models"]):
            small = about.get("small_images", {})
            more = {key: small[key] for key in ("patches", "strides", "options", "only") if key in small}
            few = about.get("few_images", {}).get("lr")
            return Family(name, about["settings"], about["measured"], few_rate=few, **more)
    return None


def has_families(recipe: str | None) -> bool:
    """Whether a recipe's numbers depend on the family of models."""
    return bool(_families(recipe))


def _families(recipe: str | None) -> dict[str, Any]:
    if recipe is None:
        return {}
    try:
        name = read_recipe(recipe).get("families")
    except (ConfigError, OSError):  # the recipe of a run from elsewhere
        return {}
    if name is None:
        return {}
    known = _all_families()
    if name not in known:
        raise ConfigError(f"recipe {recipe}: families = {name!r} was given; choose from {', '.join(known)}")
    return known[name]


@cache
def _all_families() -> dict[str, dict[str, Any]]:
    """Return the package's files of families by their names; they are looked up for every arm of a comparison."""
    files = (resources.files("saccade.recipes") / "families").iterdir()
    found = {file.name[:-5]: file for file in files if file.name.endswith(".yaml")}
    return {
        name: read_yaml(file.read_text(encoding="utf-8"), source=f"families {name}")
        for name, file in sorted(found.items())
    }
