"""Options of the constructors of registered models."""

import dataclasses
import inspect
import sys
import types
from typing import Any

import timm
from torch import nn

from ..settings.registry import join_hints, option_hints

RESERVED = ("pretrained", "num_classes", "in_chans", "device", "dtype", "out_indices", "cfg")


def constructor_options(name: str) -> dict[str, Any]:
    """Return what a registered model's constructor takes, with type hints: no name among them opens a file.

    timm's own `create_model` takes more, such as `checkpoint_path` and `pretrained_cfg`, which do.
    """
    module = sys.modules[timm.model_entrypoint(name.split(".")[0]).__module__]
    found: dict[str, Any] = {}
    for made in model_classes(module):
        hints = option_hints(made)
        settings = hints.get("cfg")
        fields = dataclasses.fields(settings) if dataclasses.is_dataclass(settings) else ()
        found = join_hints(found, hints, {field.name: Any for field in fields})
    return {option: hint for option, hint in found.items() if option not in RESERVED}


def model_classes(module: types.ModuleType) -> list[type[nn.Module]]:
    """Return the classes of a module that make whole models: those that are told the number of classes."""
    made = (one for one in vars(module).values() if inspect.isclass(one) and issubclass(one, nn.Module))
    return [one for one in made if "num_classes" in option_hints(one)]
