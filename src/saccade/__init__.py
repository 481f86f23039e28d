"""Better context for vision transformers; importing it registers the backbones with timm."""

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
    "list_backbones",
    "load_official",
]
