"""The role Hosts: builds a task's models, from timm or its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from ..data.spec import InputSpec
from ..models._identify import resolve_name
from ..settings import ConfigError, ModelConfig
from ..support.moved import find_moved

__getattr__ = find_moved(__name__)

PREFIX = "hf:"  # prefix of a model's folder or name in settings and files


def hosted_name(name: str) -> str | None:
    """Return the name in settings of a Hugging Face model, given as folder or `hf:NAME`; None for other models."""
    if name.startswith(PREFIX):
        return name
    return f"{PREFIX}{name}" if (Path(name).expanduser() / "config.json").is_file() else None


class Hosts:
    """Finds and builds the models of a task; the default supports timm models.

    Attributes:
        classifier: how the names of a Hugging Face model's classifier begin, if `optim.new_scale` applies to it.
        recipes: default recipes of kinds of Hugging Face models, by patterns of `model_type`.
    """

    classifier: ClassVar[str] = ""
    recipes: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def find_model(cls, name: str) -> str:
        """Return the full name of a model, or raise ValueError."""
        try:
            return resolve_name(name)
        except ValueError:
            if hosted_name(name) is None:
                raise
            hint = "name its task: --task text, vqa, detect or segment"
            raise ValueError(f"{name} holds a Hugging Face model; {hint}") from None

    @classmethod
    def builds(cls, name: str) -> bool:
        """Whether a model, by full name, is built by `create_model` instead of timm."""
        return False

    @classmethod
    def create_model(cls, config: ModelConfig, spec: InputSpec) -> nn.Module | None:
        """Build the task's own model; None for timm models."""
        return None

    @classmethod
    def model_options(cls, name: str, spec: InputSpec) -> dict[str, Any]:
        """Return constructor arguments that the task needs, such as for images of any size."""
        return {}

    @classmethod
    def add_head(cls, model: nn.Module, config: ModelConfig, spec: InputSpec) -> nn.Module:
        """Add the task's head to a model; by default the model keeps its classifier."""
        if config.head is not None:
            raise ConfigError(
                f"model.head = {config.head!r} was given, but the task {spec.task} has no choice of heads"
            )
        return model

    @classmethod
    def complete_spec(cls, spec: InputSpec, config: ModelConfig) -> None:
        """Store in a spec what is needed to rebuild the task's own model."""

    @classmethod
    def check_spec(cls, spec: InputSpec) -> None:
        """Raise ValueError for a spec that no model can be built from."""
