"""Names that have moved: the old module finds them in their new place for one version, and warns."""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def moved(module: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module whose names have moved.

    Args:
        module: the old module's name.
        places: each old name's new place, as in "saccade.statistics.proportion.wilson".
    """

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        text = f"{module}.{name} is now {places[name]}; the old name works in this version only"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        home, _, own = places[name].rpartition(".")
        return getattr(import_module(home), own)

    return find


def same_names(home: str, names: str) -> dict[str, str]:
    """Return the places of names, separated by spaces, that are called in their new module as in the old one."""
    return {name: f"{home}.{name}" for name in names.split()}
