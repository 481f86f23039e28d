"""Better context for vision transformers; importing it registers the backbones with timm.

Imports are lazy: names are loaded when first used, and backbones are registered when timm is imported, or at once if it
already is.
"""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .support.moved import PLACES, install

if TYPE_CHECKING:
    from .building.averaging import average_weights
    from .building.build import load_model
    from .comparison.compare import compare
    from .comparison.cross import cross_validate
    from .data.spec import InputSpec
    from .deployment.export import export
    from .deployment.optimize import optimize
    from .deployment.predict import predict
    from .deployment.serve import serve
    from .evaluation.evaluate import evaluate
    from .explanation.explain import explain
    from .kernels import accelerate
    from .models import CheckpointError, LoadReport, list_backbones, load_official
    from .plugins import (
        ContextBroadcast,
        ExtraBlock,
        Handle,
        HostError,
        LoRA,
        SecondOrderHead,
        SqueezeExcite,
        TokenEmbedding,
        UniformHead,
        attach,
        attached,
        from_pretrained,
    )
    from .settings.recipes import list_recipes
    from .tasks import Classify, Distillation, Multilabel, Regress, RelativeLocalization, TokenLabelling
    from .training.plan import plan
    from .training.train import train
    from .tuning.tune import tune

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
    "LoRA",
    "LoadReport",
    "Multilabel",
    "Regress",
    "RelativeLocalization",
    "SecondOrderHead",
    "SqueezeExcite",
    "TokenEmbedding",
    "TokenLabelling",
    "UniformHead",
    "accelerate",
    "attach",
    "attached",
    "average_weights",
    "compare",
    "cross_validate",
    "evaluate",
    "explain",
    "export",
    "from_pretrained",
    "list_backbones",
    "list_recipes",
    "load_model",
    "load_official",
    "optimize",
    "plan",
    "predict",
    "serve",
    "train",
    "tune",
]

# Modules of names that are not exported by models, plugins or tasks.
HOMES = {
    "InputSpec": "data.spec",
    "accelerate": "kernels",
    "average_weights": "building.averaging",
    "compare": "comparison.compare",
    "cross_validate": "comparison.cross",
    "evaluate": "evaluation.evaluate",
    "explain": "explanation.explain",
    "export": "deployment.export",
    "list_recipes": "settings.recipes",
    "load_model": "building.build",
    "optimize": "deployment.optimize",
    "plan": "training.plan",
    "predict": "deployment.predict",
    "serve": "deployment.serve",
    "train": "training.train",
    "tune": "tuning.tune",
}
PACKAGES = (
    *("building", "comparison", "data", "deployment", "evaluation", "explanation", "kernels", "layers"),
    *("models", "plugins", "report", "runs", "settings", "statistics", "support", "tasks", "training", "tuning"),
)


def __getattr__(name: str) -> Any:
    if name in PACKAGES or f"{__name__}.{name}" in PLACES:
        return import_module(f".{name}", __name__)
    if name in __all__:
        for home in [HOMES[name]] if name in HOMES else ["models", "plugins", "tasks"]:
            module = import_module(f".{home}", __name__)
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, *PACKAGES})


class _RegisterWithTimm(MetaPathFinder):
    """Import hook that registers the backbones after timm is imported."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return timm's spec with a loader that also registers the backbones."""
        if name != "timm" or name in sys.modules:  # a reload keeps timm's registry
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenBackbones(spec.loader)
        return spec


class _ThenBackbones(Loader):
    """Wraps timm's loader, which may be shared with other modules and is not changed."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def __getattr__(self, name: str) -> Any:
        if name == "own":  # not yet set in a copy
            raise AttributeError(name)
        return getattr(self.own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module by timm's loader."""
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute timm, then register the backbones."""
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self.own
        self.own.exec_module(module)
        import_module(f"{__name__}.models")


if sys.modules.get("timm") is not None:
    import_module(f"{__name__}.models")
elif not any(type(finder).__name__ == _RegisterWithTimm.__name__ for finder in sys.meta_path):
    sys.meta_path.insert(0, _RegisterWithTimm())
install()
