"""Settings of a run: schema, recipes, families, and rules that decide from data, model and machine.

Names are loaded when first used: `saccade.settings.help` alone costs no more than reading a file.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .changes import leave_out, nearest, overlay
    from .kinds import fit_value
    from .schema import (
        AugmentConfig,
        DataConfig,
        EngineConfig,
        KeepConfig,
        LossConfig,
        ModelConfig,
        OptimConfig,
        ScheduleConfig,
        TrainConfig,
        flatten,
    )
    from .text import drop_retired, parse_settings, read_value, read_yaml, to_yaml
    from .values import ConfigError, short

__all__ = [
    "AugmentConfig",
    "ConfigError",
    "DataConfig",
    "EngineConfig",
    "KeepConfig",
    "LossConfig",
    "ModelConfig",
    "OptimConfig",
    "ScheduleConfig",
    "TrainConfig",
    "drop_retired",
    "fit_value",
    "flatten",
    "leave_out",
    "nearest",
    "overlay",
    "parse_settings",
    "read_value",
    "read_yaml",
    "short",
    "to_yaml",
]

PLACES = {
    "changes": ("leave_out", "nearest", "overlay"),
    "kinds": ("fit_value",),
    "text": ("drop_retired", "parse_settings", "read_value", "read_yaml", "to_yaml"),
    "values": ("ConfigError", "short"),
}  # all others: "schema"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = next((place for place, names in PLACES.items() if name in names), "schema")
    value = globals()[name] = getattr(import_module(f".{place}", __name__), name)
    return value
