"""Values of a recipe that depend on the model: the block `variants` of its file, chosen by the model's name."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from ..config import ConfigError


def split_variants(values: Mapping[str, Any], *, source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a recipe's settings without its variants, and the variants: patterns of names with settings.

    Args:
        values: a recipe as read.
        source: what an error calls it.
    """
    plain = dict(values)
    variants = plain.pop("variants", None) or {}
    if not isinstance(variants, Mapping) or not all(isinstance(v, Mapping) for v in variants.values()):
        raise ConfigError(
            f"{source}: variants = {variants!r} was given; it takes patterns of model names, each with settings, as in "
            "variants: {swin_*: {model: {drop_path: 0.2}}}"
        )
    return plain, {str(pattern): settings for pattern, settings in variants.items()}


def choose_variants(variants: Mapping[str, Any], model: str) -> list[Any]:
    """Return the settings of every pattern that fits a model's name, in the order of the file: later ones win."""
    return [settings for pattern, settings in variants.items() if fnmatchcase(model.split(".")[0], pattern)]
