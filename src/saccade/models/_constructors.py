"""Constructor options of registered models."""

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
    """Return a registered model's constructor options with type hints; none of them opens a file.

    timm's `create_model` takes more options, such as `checkpoint_path` and `pretrained_cfg`, which do.
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
    """Return the model classes of a module: those that take `num_classes`."""
    made = (one for one in vars(module).values() if inspect.isclass(one) and issubclass(one, nn.Module))
    return [one for one in made if "num_classes" in option_hints(one)]
