"""The role of a task that builds models: timm's, with a head of the task's own, or models that only the task knows."""

from typing import Any

from torch import nn

from ..data.spec import InputSpec
from ..models._identify import resolve_name
from ..settings import ConfigError, ModelConfig
from ..support.moved import find_moved

__getattr__ = find_moved(__name__)


class Hosts:
    """Finds and builds the models of a task; without a class of its own, a task has those of timm."""

    @classmethod
    def find_model(cls, name: str) -> str:
        """Return the full name of a model that settings name, or raise ValueError."""
        return resolve_name(name)

    @classmethod
    def builds(cls, name: str) -> bool:
        """Tell whether a model, by its full name, is none of timm's: `create_model` builds it from the spec."""
        return False

    @classmethod
    def create_model(cls, config: ModelConfig, spec: InputSpec) -> nn.Module | None:
        """Return the model of settings and a spec; None leaves it to timm."""
        return None

    @classmethod
    def model_options(cls, name: str, spec: InputSpec) -> dict[str, Any]:
        """Return arguments of a model's constructor that the task asks for, such as taking images of any size."""
        return {}

    @classmethod
    def add_head(cls, model: nn.Module, config: ModelConfig, spec: InputSpec) -> nn.Module:
        """Return a model with the task's own head on it; most tasks take a model with its classifier as it is."""
        if config.head is not None:
            raise ConfigError(
                f"model.head = {config.head!r} was given; the task {spec.task} has no heads to choose from"
            )
        return model

    @classmethod
    def complete_spec(cls, spec: InputSpec, config: ModelConfig) -> None:
        """Add to a spec what a model that only the task knows is built from again."""

    @classmethod
    def check_spec(cls, spec: InputSpec) -> None:
        """Refuse, by ValueError, what no model can be built from."""
