"""Better context for vision transformers; importing it registers the backbones with timm."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .data.spec import InputSpec
from .models import CheckpointError, LoadReport, list_backbones, load_official
from .plugins import (
    ContextBroadcast,
    ExtraBlock,
    Handle,
    HostError,
    SecondOrderHead,
    SqueezeExcite,
    TokenEmbedding,
    UniformHead,
    attach,
    attached,
    from_pretrained,
)
from .tasks import Classify, Distillation, Multilabel, Regress, RelativeLocalization, TokenLabelling

if TYPE_CHECKING:
    from .building import load_model
    from .comparison.compare import compare
    from .deployment.export import export
    from .deployment.optimize import optimize
    from .deployment.predict import predict
    from .deployment.serve import serve
    from .evaluation.evaluate import evaluate
    from .explanation.explain import explain
    from .training.recipes import list_recipes
    from .training.train import train

# Verbs, imported when they are first used.
VERBS = {
    "compare": ".comparison.compare",
    "evaluate": ".evaluation.evaluate",
    "explain": ".explanation.explain",
    "export": ".deployment.export",
    "list_recipes": ".training.recipes",
    "load_model": ".building",
    "optimize": ".deployment.optimize",
    "predict": ".deployment.predict",
    "serve": ".deployment.serve",
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
    "ExtraBlock",
    "Handle",
    "HostError",
    "InputSpec",
    "LoadReport",
    "Multilabel",
    "Regress",
    "RelativeLocalization",
    "SecondOrderHead",
    "SqueezeExcite",
    "TokenEmbedding",
    "TokenLabelling",
    "UniformHead",
    "attach",
    "attached",
    "compare",
    "evaluate",
    "explain",
    "export",
    "from_pretrained",
    "list_backbones",
    "list_recipes",
    "load_model",
    "load_official",
    "optimize",
    "predict",
    "serve",
    "train",
]
