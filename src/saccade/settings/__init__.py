"""Settings of a run: the schema, recipes and families, and what is decided from data, model and machine."""

from .changes import leave_out, nearest, overlay
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
    help_of,
)
from .text import drop_retired, parse_settings, read_value, read_yaml, to_yaml
from .values import ConfigError, fit_value, short

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
    "help_of",
    "leave_out",
    "nearest",
    "overlay",
    "parse_settings",
    "read_value",
    "read_yaml",
    "short",
    "to_yaml",
]
