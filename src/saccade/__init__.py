"""Better context for vision transformers; with it imported, timm has the backbones.

Nothing heavy is imported before it is used: names are found when they are asked for, and the backbones are registered
when timm itself is imported, at once if it has been.
"""

import sys
from importlib import import_module, util
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .averaging import average_weights
    from .building import load_model
    from .comparison.compare import compare
    from .comparison.cross import cross_validate
    from .data.spec import InputSpec
    from .deployment.export import export
    from .deployment.optimize import optimize
    from .deployment.predict import predict
    from .deployment.serve import serve
    from .evaluation.evaluate import evaluate
    from .explanation.explain import explain
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
    from .training.recipes import list_recipes
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
    "predict",
    "serve",
    "train",
    "tune",
]

# Where a name is that no package of these gives by itself: models, plugins, tasks.
HOMES = {
    "InputSpec": "data.spec",
    "average_weights": "averaging",
    "compare": "comparison.compare",
    "cross_validate": "comparison.cross",
    "evaluate": "evaluation.evaluate",
    "explain": "explanation.explain",
    "export": "deployment.export",
    "list_recipes": "training.recipes",
    "load_model": "building",
    "optimize": "deployment.optimize",
    "predict": "deployment.predict",
    "serve": "deployment.serve",
    "train": "training.train",
    "tune": "tuning.tune",
}
PACKAGES = (
    *("comparison", "data", "deployment", "evaluation", "explanation", "layers"),
    *("models", "plugins", "report", "tasks", "training", "tuning"),
)


def __getattr__(name: str) -> Any:
    if name in PACKAGES:
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
    """Lets the import of timm end with that of the backbones, which register themselves there."""

    searching = False

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        """Return timm's own spec, whose module registers the backbones when it has run."""
        if fullname != "timm" or self.searching:
            return None
        self.searching = True
        try:
            spec = util.find_spec(fullname)
        finally:
            self.searching = False
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                import_module(f"{__name__}.models")

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


if "timm" in sys.modules:
    import_module(f"{__name__}.models")
else:
    sys.meta_path.insert(0, _RegisterWithTimm())
