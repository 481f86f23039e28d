"""Better context for vision transformers; importing it registers the backbones with timm."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .models import CheckpointError, LoadReport, list_backbones, load_official
from .plugins import (
    ContextBroadcast,
    Handle,
    HostError,
    SecondOrderHead,
    SqueezeExcite,
    UniformHead,
    attach,
    attached,
)
from .tasks import Classify, Distillation, RelativeLocalization, TokenLabelling

if TYPE_CHECKING:
    from .building import load_model
    from .comparison.compare import compare
    from .training.train import list_recipes, train

# Verbs, imported when they are first used.
VERBS = {
    "compare": ".comparison.compare",
    "list_recipes": ".training.train",
    "load_model": ".building",
    "train": ".training.train",
}


def __getattr__(name: str) -> Any:
    if name in VERBS:
        return getattr(import_module(VERBS[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = "0.1.0.dev0"
__all__ = [
    "CheckpointError",
    "Classify",
    "ContextBroadcast",
    "Distillation",
    "Handle",
    "HostError",
    "LoadReport",
    "RelativeLocalization",
    "SecondOrderHead",
    "SqueezeExcite",
    "TokenLabelling",
    "UniformHead",
    "attach",
    "attached",
    "compare",
    "list_backbones",
    "list_recipes",
    "load_model",
    "load_official",
    "train",
]
