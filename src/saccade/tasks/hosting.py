"""Hosts of tasks that also support Hugging Face models."""

from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from ..data.spec import InputSpec
from ..settings import ConfigError, ModelConfig
from ..support.files import read_record
from .hosts import PREFIX, Hosts, hosted_name
from .huggingface import build_host, describe_host, read_config


class Hosted(nn.Module):
    """Wrapper of a transformers model; `no_graph` is the reason that it cannot be exported."""

    no_graph: ClassVar[str]

    def __init__(self, model: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.host, self.num_classes = model, num_classes
        self.pretrained_cfg: dict[str, Any] = {}
        self.default_cfg: dict[str, Any] = {}


class TransformersHosts(Hosts):
    """Builds timm models and some Hugging Face models.

    Attributes:
        host_kind: the transformers auto class of supported models.
        host: wraps a model, given the number of classes.
    """

    host_kind: ClassVar[str] = ""
    host: ClassVar[type[Hosted]]

    @classmethod
    def find_model(cls, name: str) -> str:
        """Return the full name of a timm model, or `hf:` and the folder or name of a Hugging Face model."""
        return hosted_name(name) or super().find_model(name)

    @classmethod
    def builds(cls, name: str) -> bool:
        """Whether a model is from Hugging Face."""
        return name.startswith(PREFIX)

    @classmethod
    def complete_spec(cls, spec: InputSpec, config: ModelConfig) -> None:
        """Store the configuration of a Hugging Face model."""
        if cls.builds(config.name):
            spec.extra["host"] = describe_host(config.name.removeprefix(PREFIX), spec.outputs, kind=cls.host_kind)

    @classmethod
    def check_spec(cls, spec: InputSpec) -> None:
        """Refuse a Hugging Face model that cannot be built."""
        if "host" in spec.extra:
            read_config(spec, kind=cls.host_kind)

    @classmethod
    def create_model(cls, config: ModelConfig, spec: InputSpec) -> nn.Module | None:
        """Build a Hugging Face model, for training with its weights; None for timm models."""
        if not cls.builds(config.name):
            return None
        if "host" not in spec.extra:
            raise ConfigError(f"model.name = {config.name!r} was given, but its configuration is not in the spec")
        weights = config.name.removeprefix(PREFIX) if config.pretrained else None
        return cls.host(build_host(spec, kind=cls.host_kind, weights=weights), len(spec.outputs))


def has_weights(name: str) -> bool:
    """Whether there are weights; a folder may only have a configuration."""
    folder = Path(name.removeprefix(PREFIX)).expanduser()
    return not folder.is_dir() or any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))


def normalisation(name: str) -> tuple[list[float], list[float]] | None:
    """Return mean and standard deviation of a folder's `preprocessor_config.json`, if any."""
    settings = read_record(Path(name.removeprefix(PREFIX)).expanduser() / "preprocessor_config.json")
    if settings.get("do_normalize") is False:
        return [0.0] * 3, [1.0] * 3
    values: list[Any] = [settings.get(key) for key in ("image_mean", "image_std")]
    if all(isinstance(one, list) and len(one) == 3 and all(isinstance(v, int | float) for v in one) for one in values):
        mean, std = ([float(value) for value in one] for one in values)
        return mean, std
    return None
